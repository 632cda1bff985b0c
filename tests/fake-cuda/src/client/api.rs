//! The driver in the hand of a test.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::library::Library;
use super::{CallRecord, InstallError, Live, Run, Schedule};

/// The simulated driver of this process.
///
/// There is one, as there is one driver: tests that share a process and look at
/// it take turns by [`lock`](Self::lock). What is set here holds for the whole
/// process.
///
/// All methods panic when the driver refuses, which is a mistake in the test.
///
/// # Examples
///
/// ```
/// # #[cfg(target_os = "linux")] {
/// use fakecuda::{FakeCuda, Schedule};
///
/// let fake = FakeCuda::install()?.lock();
/// fake.set_schedule(Schedule::Delayed);
/// fake.fail("cuMemAlloc_v2", 1, 2);
///
/// // ... what is tested ...
///
/// assert!(fake.violations().is_empty());
/// assert!(fake.live().is_clean());
/// # }
/// # Ok::<(), fakecuda::InstallError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FakeCuda {
    library: Library,
}

/// The driver for one test at a time.
#[derive(Debug)]
pub struct Exclusive {
    fake: FakeCuda,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Exclusive {
    type Target = FakeCuda;

    fn deref(&self) -> &FakeCuda {
        &self.fake
    }
}

impl FakeCuda {
    /// Loads the driver, unless it is loaded. A later request of this process for
    /// `libcuda.so` gets it, also where a real driver is installed.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](InstallError::NotFound): cargo has not built the file, or
    ///   it lies elsewhere.
    /// - [`DriverLoaded`](InstallError::DriverLoaded): this comes after the first
    ///   use of a driver.
    /// - The others: the file is damaged or of another version.
    pub fn install() -> Result<Self, InstallError> {
        Self::load(&[])
    }

    /// The same with a driver that lacks some functions, as an old driver does:
    /// they are not found in it. A driver that is loaded stays as it is.
    ///
    /// # Errors
    ///
    /// Those of [`install`](Self::install), and
    /// [`Load`](InstallError::Load) for a function that there is not, or if no
    /// temporary file can be written.
    pub fn install_without(functions: &[&str]) -> Result<Self, InstallError> {
        Self::load(functions)
    }

    fn load(hidden: &[&str]) -> Result<Self, InstallError> {
        static LOADED: OnceLock<Result<Library, InstallError>> = OnceLock::new();
        let library = LOADED.get_or_init(|| Library::load(hidden)).clone()?;
        Ok(Self { library })
    }

    /// Waits for this test's turn, and starts it with [`clear`](Self::clear).
    #[must_use]
    pub fn lock(self) -> Exclusive {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        self.clear();
        Exclusive {
            fake: self,
            _turn: turn,
        }
    }

    /// Does all work that waits, and forgets calls, faults, violations and all
    /// settings but the devices and what they are. What is allocated stays.
    pub fn clear(&self) {
        self.tell("clear");
    }

    /// Destroys the driver's state, as if the process had just begun: all
    /// contexts, memory and settings. Handles from before stay invalid.
    ///
    /// For a test that is alone in its process: a program that keeps a context is
    /// not told.
    pub fn reset(&self) {
        self.tell("reset");
    }

    /// Sets the number of devices; 0 makes `cuInit` return 100. Before `cuInit`
    /// or after a reset only.
    pub fn set_devices(&self, count: usize) {
        self.tell(&format!("devices {count}"));
    }

    /// Sets the bytes of every device without a number of its own.
    pub fn set_total_memory(&self, bytes: usize) {
        self.tell(&format!("total_memory {bytes}"));
    }

    /// Sets the bytes of one device.
    pub fn set_device_memory(&self, device: usize, bytes: usize) {
        self.tell(&format!("device_memory {device} {bytes}"));
    }

    /// Sets the most bytes of pinned and managed memory.
    pub fn set_host_memory(&self, bytes: usize) {
        self.tell(&format!("host_memory {bytes}"));
    }

    /// Sets an attribute of a device by its number.
    pub fn set_attribute(&self, device: usize, attribute: i32, value: i32) {
        self.tell(&format!("attribute {device} {attribute} {value}"));
    }

    /// Sets whether a device has stream-ordered allocations: attribute 115.
    pub fn set_pools(&self, device: usize, supported: bool) {
        self.set_attribute(device, 115, i32::from(supported));
    }

    /// Sets what `cuDriverGetVersion` says, such as 11040 for 11.4.
    pub fn set_driver_version(&self, version: i32) {
        self.tell(&format!("driver_version {version}"));
    }

    /// Sets whether devices can access each other's memory.
    pub fn set_peer_access(&self, possible: bool) {
        self.tell(&format!("peer_access {}", u8::from(possible)));
    }

    /// Sets when streams do their work. What waits goes on waiting.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.tell(&match schedule {
            Schedule::Eager => String::from("schedule eager"),
            Schedule::Delayed => String::from("schedule delayed"),
            Schedule::Random(seed) => format!("schedule random {seed}"),
        });
    }

    /// Sets whether freed addresses are used again, the last freed first.
    /// Otherwise none is for as long as possible.
    pub fn set_reuse(&self, reuse: bool) {
        self.tell(&format!("reuse {}", u8::from(reuse)));
    }

    /// Sets whether a free by the other family of calls is a violation, which it
    /// is at first. The free is done either way.
    pub fn set_strict_families(&self, strict: bool) {
        self.tell(&format!("strict_families {}", u8::from(strict)));
    }

    /// Sets whether all calls return 4, as they do when the process exits.
    pub fn set_shut_down(&self, shut_down: bool) {
        self.tell(&format!("shut_down {}", u8::from(shut_down)));
    }

    /// Sets whether that happens by itself at the exit of the process, which it
    /// does at first.
    pub fn set_shut_down_at_exit(&self, shut_down: bool) {
        self.tell(&format!("shut_down_at_exit {}", u8::from(shut_down)));
    }

    /// Sets what every stream says of its capture: 0 none, 1 active, 2 spoilt;
    /// `None` is the truth.
    pub fn set_capture_status(&self, status: Option<u32>) {
        let status = status.map(|status| status.to_string()).unwrap_or_default();
        self.tell(&format!("capture_status {status}"));
    }

    /// Makes the `nth` call from now of a function return `code` and do nothing;
    /// 1 is the next, and 0 is each. A code such as 700 then stays with the
    /// context. Code 0 lets the call pass.
    pub fn fail(&self, call: &str, nth: u64, code: i32) {
        self.tell(&format!("fail {call} {nth} {code}"));
    }

    /// The same for the `nth` call of any function: a test that raises `nth`
    /// until [`fired`](Self::fired) says that it was not reached has failed each.
    pub fn fail_call_number(&self, nth: u64, code: i32) {
        self.tell(&format!("fail_any {nth} {code}"));
    }

    /// Forgets the failures that have not happened.
    pub fn disarm(&self) {
        self.tell("disarm");
    }

    /// How many failures have happened since the last [`clear`](Self::clear).
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.ask_number("fired")
    }

    /// How often a function was called since the last clear, failures included.
    #[must_use]
    pub fn count(&self, call: &str) -> u64 {
        self.ask_number(&format!("count {call}"))
    }

    /// The functions that were called, and how often.
    #[must_use]
    pub fn counts(&self) -> Vec<(String, u64)> {
        let answer = self.tell("counts");
        let pairs = answer.lines().filter_map(|line| line.split_once(' '));
        pairs
            .filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
            .collect()
    }

    /// How many calls there were.
    #[must_use]
    pub fn total_calls(&self) -> u64 {
        self.ask_number("total")
    }

    /// Sets whether calls are kept one by one for [`calls`](Self::calls).
    pub fn set_recording(&self, record: bool) {
        self.tell(&format!("record {}", u8::from(record)));
    }

    /// The calls that were kept, the first first.
    #[must_use]
    pub fn calls(&self) -> Vec<CallRecord> {
        self.tell("calls")
            .lines()
            .filter_map(CallRecord::parse)
            .collect()
    }

    /// Forgets the calls that were kept and sets all counts to 0.
    pub fn clear_calls(&self) {
        self.tell("clear_calls");
    }

    /// What the program did wrong, the first first: the function it did it with,
    /// and what. Work that waits is not looked at until it is done.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.tell("violations").lines().map(str::to_owned).collect()
    }

    /// Forgets what the program did wrong.
    pub fn clear_violations(&self) {
        self.tell("clear_violations");
    }

    /// What is alive.
    #[must_use]
    pub fn live(&self) -> Live {
        Live::parse(&self.tell("live"))
    }

    /// Does work that waits.
    pub fn run_schedule(&self, run: Run) {
        self.tell(&match run {
            Run::All => String::from("run"),
            Run::Steps(steps) => format!("run steps {steps}"),
            Run::Stream(stream) => format!("run stream {stream}"),
        });
    }

    /// The `len` bytes of device memory from `ptr` as they are now, or `None` if
    /// they are not in one block. No work is done and no call is counted.
    #[must_use]
    pub fn read(&self, ptr: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.library.read(ptr, &mut bytes).then_some(bytes)
    }

    /// The handle of the context that is current on this thread, and its device
    /// unless it is destroyed.
    #[must_use]
    pub fn current_context(&self) -> Option<(u64, Option<usize>)> {
        let [handle, device, _] = self.current();
        let handle = u64::try_from(handle).ok().filter(|handle| *handle != 0)?;
        Some((handle, usize::try_from(device).ok()))
    }

    /// How many contexts are on the stack of this thread.
    #[must_use]
    pub fn context_stack_height(&self) -> usize {
        usize::try_from(self.current()[2]).unwrap_or(0)
    }

    /// The names of the functions that the driver has.
    #[must_use]
    pub fn exports(&self) -> Vec<String> {
        self.tell("exports").lines().map(str::to_owned).collect()
    }

    fn current(&self) -> [i64; 3] {
        let answer = self.tell("current");
        let mut words = answer.split(' ').map(|word| word.parse().unwrap_or(0));
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }

    #[track_caller]
    fn ask_number(&self, command: &str) -> u64 {
        self.tell(command).trim().parse().unwrap_or(0)
    }

    #[track_caller]
    fn tell(&self, command: &str) -> String {
        match self.library.command(command) {
            Ok(answer) => answer,
            Err(complaint) => panic!("{command:?}: {complaint}"),
        }
    }
}
