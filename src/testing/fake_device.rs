//! Devices without hardware.
//!
//! Rank 8. Part of `testing`. Imports `allocator`, `span`, `process` and the words.
//!
//! A fake holds its callers to the contract: what breaks it is reported and not
//! done, so a test sees the mistake and not its consequences.

mod addresses;
mod builder;
mod calls;
mod contents;
mod contract;
mod kernel;
mod memory;
mod queue;
mod state;
mod violations;

use std::fmt::{self, Write as _};
use std::sync::Arc;

use crate::address::DevicePtr;
use crate::device::{Device, DeviceIndex, DeviceType};
use crate::layout::DeviceLayout;

pub use builder::FakeDeviceBuilder;
pub use calls::Call;
pub use violations::{Misuse, Violation};

use addresses::{Place, SLOT_COUNT};
use state::Shared;

/// An allocator of devices that do not exist, for tests.
///
/// Its addresses are opaque: on 64-bit targets a host access to one ends the
/// process with a signal. Bytes are kept elsewhere, and only those written, so
/// blocks of terabytes cost nothing. Fresh memory reads as `0xCD`. Blocks are
/// aligned to what was asked and to no more.
///
/// Every call is recorded, and every call that breaks a promise of the caller is
/// refused and kept as a [`Violation`]: a double free, a wrong layout or index,
/// a copy past the end of a block, a device pointer where a host pointer is due.
///
/// Clones are handles of one fake: a test keeps one and gives another away.
/// It may be used from any thread; calls are done one at a time. In a forked
/// child all calls are recorded and return
/// [`ForkedProcess`](crate::ErrorKind::ForkedProcess).
///
/// The record grows with every call until [`clear_calls`](Self::clear_calls).
/// With backtraces enabled (`RUST_BACKTRACE`) each free captures one.
///
/// # Examples
///
/// ```
/// use device_memory::testing::FakeDevice;
/// use device_memory::{DeviceAllocator, DeviceLayout, DeviceType};
///
/// let fake = FakeDevice::new(DeviceType::Cuda, 2);
/// let layout = DeviceLayout::from_size(1 << 40)?;
/// let ptr = fake.allocate(layout, 1)?;
///
/// // SAFETY: the block is freed once, as it was allocated.
/// unsafe { fake.deallocate(ptr, layout, 1)? };
/// // SAFETY: this breaks the contract, which the fake is there to find.
/// let again = unsafe { fake.deallocate(ptr, layout, 1) };
///
/// assert!(again.is_err());
/// assert_eq!(fake.live_blocks(), 0);
/// assert_eq!(
///     fake.violations()[0].to_string(),
///     format!(
///         "call 3, deallocate on cuda:1: double free of {ptr}: \
///          allocated by call 1, freed by call 2"
///     ),
/// );
/// # Ok::<(), device_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct FakeDevice {
    shared: Arc<Shared>,
}

/// A block that is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBlock {
    /// Its address.
    pub ptr: DevicePtr,
    /// The layout it was allocated with.
    pub layout: DeviceLayout,
    /// The device it is on.
    pub device: Device,
    /// The position among all calls of the one that allocated it.
    pub allocated: u64,
}

impl FakeDevice {
    /// The most devices that one fake has.
    pub const MAX_DEVICES: usize = SLOT_COUNT;

    /// Makes `device_count` devices of `device_type`, without options.
    #[must_use]
    pub fn new(device_type: DeviceType, device_count: usize) -> Self {
        Self::builder(device_type).devices(device_count).build()
    }

    /// Starts with the options of one device of `device_type`.
    #[must_use]
    pub fn builder(device_type: DeviceType) -> FakeDeviceBuilder {
        FakeDeviceBuilder::new(device_type)
    }

    /// All calls so far, the first first.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.lock().calls.clone()
    }

    /// Forgets the calls so far; the numbers of later ones go on from them.
    pub fn clear_calls(&self) {
        self.shared.lock().calls.clear();
    }

    /// How many allocations succeeded.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.shared.lock().allocations
    }

    /// How many deallocations succeeded.
    #[must_use]
    pub fn deallocations(&self) -> u64 {
        self.shared.lock().deallocations
    }

    /// How many blocks are allocated.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        let state = self.shared.lock();
        let counts = state.devices.iter().map(|memory| memory.blocks.len());
        counts.fold(0, usize::saturating_add)
    }

    /// The same as [`live_blocks`](Self::live_blocks), as the question after
    /// leaks.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.live_blocks()
    }

    /// How many bytes are allocated.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.shared.lock().live_bytes()
    }

    /// The most bytes that were allocated at one time.
    #[must_use]
    pub fn peak_bytes(&self) -> usize {
        self.shared.lock().peak_bytes
    }

    /// The blocks that are allocated, by device and address.
    #[must_use]
    pub fn live(&self) -> Vec<LiveBlock> {
        let state = self.shared.lock();
        let mut live = Vec::new();
        for (index, memory) in state.devices.iter().enumerate() {
            let index = DeviceIndex::try_from(index).unwrap_or(DeviceIndex::MAX);
            for (addr, block) in &memory.blocks {
                live.extend(DevicePtr::from_addr(*addr).map(|ptr| LiveBlock {
                    ptr,
                    layout: block.layout,
                    device: self.shared.device(index),
                    allocated: block.allocated,
                }));
            }
        }
        live
    }

    /// How many copies and fills are given to the devices and not done yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        let state = self.shared.lock();
        let counts = state.devices.iter().map(|memory| memory.queue.len());
        counts.fold(0, usize::saturating_add)
    }

    /// The `size` bytes from `ptr` as they are now, or `None` if they are not in
    /// one live block.
    ///
    /// This is no call: it is not recorded, and does no delayed work.
    #[must_use]
    pub fn contents(&self, ptr: DevicePtr, size: usize) -> Option<Vec<u8>> {
        let Place::Device(device) = self.shared.config.slots.locate(ptr.addr()) else {
            return None;
        };
        let state = self.shared.lock();
        let memory = state.devices.get(device)?;
        let spot = memory.spot(ptr, size).ok()?;
        let mut bytes = vec![0; size];
        let block = memory.blocks.get(&spot.block)?;
        block.contents.read(spot.offset, &mut bytes);
        Some(bytes)
    }

    /// What callers did wrong so far, the first first.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.lock().violations.clone()
    }

    /// Forgets what callers did wrong so far.
    pub fn clear_violations(&self) {
        self.shared.lock().violations.clear();
    }

    /// Makes every later call return [`ShutDown`](crate::ErrorKind::ShutDown), as a
    /// driver does at the exit of a process. A block that is given back is gone
    /// all the same.
    pub fn shut_down(&self) {
        self.shared.lock().shut_down = true;
    }

    /// Checks at the end of a test that all blocks were given back and that no
    /// caller did anything wrong.
    ///
    /// # Panics
    ///
    /// If there is a live block or a violation. The message names each.
    #[track_caller]
    #[expect(
        clippy::panic,
        reason = "an assertion of tests, which is to fail them, as documented"
    )]
    pub fn assert_clean(&self) {
        if let Some(report) = self.complaint() {
            panic!("{report}");
        }
    }

    /// The message of [`assert_clean`](Self::assert_clean), if there is one.
    fn complaint(&self) -> Option<String> {
        let mut report = String::new();
        for violation in self.violations() {
            let _ = writeln!(report, "{violation}");
            for (what, backtrace) in violation.backtraces() {
                let _ = writeln!(report, "{what} at:\n{backtrace}");
            }
        }
        for block in self.live() {
            let _ = writeln!(
                report,
                "block of {} bytes at {} on {}, allocated by call {}, is not freed",
                block.layout.size(),
                block.ptr,
                block.device,
                block.allocated
            );
        }
        (!report.is_empty()).then_some(report)
    }

    /// Takes a block back that its owner could not give back, without a call.
    pub(super) fn reclaim(&self, ptr: DevicePtr) {
        let Place::Device(device) = self.shared.config.slots.locate(ptr.addr()) else {
            return;
        };
        let mut state = self.shared.lock();
        let sequence = state.sequence;
        if let Some(memory) = state.devices.get_mut(device) {
            memory.remove(
                ptr,
                sequence,
                &Arc::new(std::backtrace::Backtrace::disabled()),
            );
        }
    }
}

impl fmt::Debug for FakeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut output = f.debug_struct("FakeDevice");
        output
            .field("device_type", &self.shared.config.device_type)
            .field("device_count", &self.shared.config.device_count);
        // Printing from under the lock must not wait for it.
        if let Some(state) = self.shared.try_lock() {
            output
                .field("live_bytes", &state.live_bytes())
                .field("calls", &state.sequence)
                .field("violations", &state.violations.len());
        }
        output.finish_non_exhaustive()
    }
}

const _: fn() = || {
    fn is_send_sync<T: Send + Sync>() {}
    is_send_sync::<FakeDevice>();
    is_send_sync::<Violation>();
};
