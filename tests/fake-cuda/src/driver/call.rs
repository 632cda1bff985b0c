//! How every call of a program comes in.
//!
//! Nothing of a call happens before its fault is looked up, and no panic leaves
//! it.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use super::code::{Code, Done};
use super::context::Context;
use super::exports::NAMES;
use super::fault::Record;
use super::settings::Schedule;
use super::state::{STATE, State};
use super::{control, fault, quick, report, thread};

/// When a function may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Always, with nothing looked at but ordered faults.
    Always,
    /// Also before `cuInit`.
    BeforeInit,
    /// After `cuInit`.
    AfterInit,
}

/// A call that is being served, with the driver to itself.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) state: MutexGuard<'static, Option<Box<State>>>,
    name: usize,
    note: (u64, usize, u64),
}

/// The state, of which anything may be changed.
#[derive(Debug)]
pub(super) struct Locked(MappedMutexGuard<'static, State>);

/// Serves one call of the function numbered `name`.
pub(super) fn enter(name: usize, when: When, body: impl FnOnce(&mut Call) -> Done) -> i32 {
    match catch_unwind(AssertUnwindSafe(|| serve(name, when, body))) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => {
            let name = NAMES.get(name).copied().unwrap_or_default();
            let note = format!("the fake driver itself panicked in {name}");
            lock().violations.push(note);
            Code::UNKNOWN.0
        }
    }
}

/// The state, for what is no call of the program.
pub(super) fn lock() -> Locked {
    Locked(MutexGuard::map(open(STATE.lock()), |state| {
        state.get_or_insert_with(State::new).as_mut()
    }))
}

/// A call that is none of the program, for tests that let work run.
pub(super) fn outside() -> Call {
    Call {
        state: open(STATE.lock()),
        name: usize::MAX,
        note: (0, 0, 0),
    }
}

fn serve(name: usize, when: When, body: impl FnOnce(&mut Call) -> Done) -> Done {
    if thread::in_callback() && when != When::Always {
        return refuse_in_callback(name);
    }
    if quick::is_forked() {
        return in_child(name, when);
    }
    let mut call = Call {
        state: open(STATE.lock()),
        name,
        note: (0, 0, 0),
    };
    let done = call.gate(when).and_then(|()| body(&mut call));
    if call.settings.record {
        call.record(done);
    }
    done
}

impl Call {
    /// Counts the call and lets it pass, or not.
    #[inline]
    fn gate(&mut self, when: When) -> Done {
        let name = self.name;
        fault::count(name);
        if self.faults.armed() != 0 {
            self.fail_as_ordered()?;
        }
        if when == When::Always {
            return Ok(());
        }
        if self.settings.shut_down {
            return Err(Code::DEINITIALIZED);
        }
        if when == When::AfterInit && !self.initialized {
            return Err(Code::NOT_INITIALIZED);
        }
        if self.settings.schedule == Schedule::Random && self.pending != 0 {
            self.run_some();
        }
        Ok(())
    }

    #[cold]
    fn fail_as_ordered(&mut self) -> Done {
        let name = self.name;
        let code = self.faults.next(name);
        quick::refresh(self);
        let Some(code) = code else {
            return Ok(());
        };
        if code.is_sticky() {
            self.make_sticky(code);
        }
        Err(code)
    }

    /// Keeps what the call is about, for the record.
    #[inline]
    pub(super) fn note(&mut self, ptr: u64, size: usize, stream: u64) {
        self.note = (ptr, size, stream);
    }

    /// Keeps something that the program did wrong.
    #[cold]
    pub(super) fn violate(&mut self, what: String) {
        let name = NAMES.get(self.name).copied().unwrap_or("later");
        let text = format!("{name}: {what}");
        self.violations.push(text);
    }

    /// The context that is current on this thread and can be used.
    #[inline]
    pub(super) fn current(&self) -> Done<u64> {
        let handle = thread::current().ok_or(Code::INVALID_CONTEXT)?;
        self.usable(handle)?;
        Ok(handle)
    }

    /// The context of `handle`, unless it is gone or broken.
    #[inline]
    pub(super) fn usable(&self, handle: u64) -> Done<&Context> {
        let context = self.contexts.get(&handle);
        let context = context.ok_or(Code::CONTEXT_IS_DESTROYED)?;
        context.sticky.map_or(Ok(context), Err)
    }

    /// The current context and its device.
    #[inline]
    pub(super) fn current_device(&self) -> Done<(u64, usize)> {
        let handle = self.current()?;
        Ok((handle, self.usable(handle)?.device))
    }

    fn make_sticky(&mut self, code: Code) {
        if let Some(context) = thread::current() {
            self.break_context(context, code);
        }
    }

    /// Makes all later calls in a context fail.
    pub(super) fn break_context(&mut self, context: u64, code: Code) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.sticky = Some(code);
        }
        quick::refresh(self);
    }

    fn record(&mut self, done: Done) {
        let context = thread::current().unwrap_or(0);
        let device = self.contexts.get(&context).map(|context| context.device);
        let record = Record {
            name: self.name,
            thread: thread::number(),
            context,
            device: device.map_or(-1, |device| device as i64),
            ptr: self.note.0,
            size: self.note.1,
            stream: self.note.2,
            code: done.err().map_or(0, |code| code.0),
        };
        self.faults.records.push(record);
    }
}

impl Deref for Call {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.state.as_deref().expect("`open` has made it")
    }
}

impl DerefMut for Call {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().expect("`open` has made it")
    }
}

impl Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        quick::refresh(self);
    }
}

/// Makes the state, the first time.
#[inline]
fn open(
    mut guard: MutexGuard<'static, Option<Box<State>>>,
) -> MutexGuard<'static, Option<Box<State>>> {
    if guard.is_none() {
        *guard = Some(State::new());
        prepare(&mut guard);
    }
    guard
}

#[cold]
fn prepare(state: &mut Option<Box<State>>) {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        extern "C" fn in_child() {
            quick::set_forked();
        }
        // SAFETY: `in_child` only stores to atomics, which is allowed between
        // `fork` and `exec`, and the library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        report::at_exit();
    });
    if let (Some(state), Ok(commands)) = (state, std::env::var("FAKECUDA_COMMANDS")) {
        for command in commands.split(';') {
            let command = command.trim();
            if !command.is_empty() && control::configure(state, command).is_err() {
                let note = format!("FAKECUDA_COMMANDS: not understood: {command}");
                state.violations.push(note);
            }
        }
    }
}

/// What a call comes to in a forked child: it is counted, and does nothing. A
/// thread that is not there any more may hold the lock.
#[cold]
fn in_child(name: usize, when: When) -> Done {
    fault::count(name);
    if let Some(mut state) = try_state() {
        state.faults.next(name);
        let name = NAMES.get(name).copied().unwrap_or_default();
        if when == When::AfterInit {
            let note = format!("{name}: called in a forked child");
            state.violations.push(note);
        }
    }
    Err(Code::NOT_INITIALIZED)
}

/// What a call comes to in a function that a stream runs.
#[cold]
fn refuse_in_callback(name: usize) -> Done {
    fault::count(name);
    let mut state = lock();
    state.faults.next(name);
    let name = NAMES.get(name).copied().unwrap_or_default();
    let note = format!("{name}: called by a function that a stream runs");
    state.violations.push(note);
    Err(Code::NOT_PERMITTED)
}

fn try_state() -> Option<MappedMutexGuard<'static, State>> {
    let lock: &'static Mutex<Option<Box<State>>> = &STATE;
    let guard = lock.try_lock()?;
    MutexGuard::try_map(guard, |state| state.as_deref_mut()).ok()
}
