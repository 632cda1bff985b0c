//! Streams that note work down in place of doing it.
//!
//! Only what an owner of memory has to know is here: who captures, and what is
//! forbidden meanwhile. The work itself is dropped, and no graph can be run.

use super::call::Call;
use super::code::{Code, Done};
use super::stream::{self, StreamKind};
use super::{quick, thread};

const MODE_GLOBAL: u32 = 0;
const MODE_RELAXED: u32 = 2;

/// A capture that has begun on a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capture {
    mode: u32,
    thread: u64,
    invalid: bool,
}

/// Begins a capture.
pub(super) fn begin(call: &mut Call, handle: u64, mode: u32) -> Done {
    call.current()?;
    let handle = stream::resolve(call, handle)?;
    if mode > MODE_RELAXED {
        return Err(Code::INVALID_VALUE);
    }
    let stream = call.streams.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
    if stream.kind == StreamKind::Null {
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    if stream.capture.is_some() {
        return Err(Code::ILLEGAL_STATE);
    }
    stream.capture = Some(Capture {
        mode,
        thread: thread::number(),
        invalid: false,
    });
    call.captures += 1;
    quick::refresh(call);
    Ok(())
}

/// Ends a capture, and returns the handle of a graph that can only be destroyed.
pub(super) fn end(call: &mut Call, handle: u64) -> Done<u64> {
    call.current()?;
    let handle = stream::resolve(call, handle)?;
    let stream = call.streams.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?;
    let capture = stream.capture.ok_or(Code::ILLEGAL_STATE)?;
    if capture.mode != MODE_RELAXED && capture.thread != thread::number() {
        return Err(Code::CAPTURE_WRONG_THREAD);
    }
    stream.capture = None;
    call.captures -= 1;
    quick::refresh(call);
    if capture.invalid {
        return Err(Code::CAPTURE_INVALIDATED);
    }
    let graph = call.next_handle();
    call.graphs.insert(graph);
    Ok(graph)
}

/// What a stream says of its capture: 0 none, 1 active, 2 spoilt.
pub(super) fn status(call: &mut Call, on: u64) -> Done<u32> {
    call.current()?;
    let handle = stream::resolve(call, on)?;
    if let Some(status) = call.settings.capture_status {
        return Ok(status);
    }
    let stream = call.streams.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    if stream.kind == StreamKind::Null && blocking_capture(call, stream.context).is_some() {
        return Err(Code::CAPTURE_IMPLICIT);
    }
    Ok(match stream.capture {
        None => {
            quick::found_idle(on);
            0
        }
        Some(Capture { invalid: false, .. }) => 1,
        Some(Capture { invalid: true, .. }) => 2,
    })
}

/// Whether work given to a stream is noted down in place of being done.
pub(super) fn absorbs(call: &mut Call, handle: u64) -> Done<bool> {
    let stream = call.streams.get(&handle).ok_or(Code::INVALID_HANDLE)?;
    if stream.kind == StreamKind::Null {
        let context = stream.context;
        return match blocking_capture(call, context) {
            Some(capturing) => {
                spoil(call, capturing);
                Err(Code::CAPTURE_IMPLICIT)
            }
            None => Ok(false),
        };
    }
    match stream.capture {
        None => Ok(false),
        Some(Capture { invalid: false, .. }) => Ok(true),
        Some(Capture { invalid: true, .. }) => Err(Code::CAPTURE_INVALIDATED),
    }
}

/// Refuses to wait for a stream that captures.
pub(super) fn forbid_wait(call: &mut Call, handle: u64) -> Done {
    let stream = call.streams.get(&handle);
    if stream.is_some_and(|stream| stream.capture.is_some()) {
        spoil(call, handle);
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

impl Call {
    /// Refuses a call that may not be made while this thread, or in global mode
    /// any, captures. The capture is spoilt.
    #[inline]
    pub(super) fn forbid_in_capture(&mut self) -> Done {
        if self.captures == 0 {
            return Ok(());
        }
        self.forbid_in_a_capture()
    }

    #[cold]
    fn forbid_in_a_capture(&mut self) -> Done {
        let (own_mode, this) = (thread::capture_mode(), thread::number());
        if own_mode == MODE_RELAXED {
            return Ok(());
        }
        let conflicts = |capture: &Capture| {
            let mine = capture.thread == this && capture.mode != MODE_RELAXED;
            let global = own_mode == MODE_GLOBAL && capture.mode == MODE_GLOBAL;
            mine || global
        };
        let mut conflict = false;
        for stream in self.streams.values_mut() {
            if let Some(capture) = stream.capture.as_mut().filter(|own| conflicts(own)) {
                capture.invalid = true;
                conflict = true;
            }
        }
        if conflict {
            Err(Code::CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }
}

/// Makes the end of a capture an error.
pub(super) fn spoil(call: &mut Call, handle: u64) {
    let stream = call.streams.get_mut(&handle);
    if let Some(capture) = stream.and_then(|stream| stream.capture.as_mut()) {
        capture.invalid = true;
    }
}

/// A stream that captures and that the null stream of a context waits for.
fn blocking_capture(call: &Call, context: u64) -> Option<u64> {
    let mut streams = call.streams.iter();
    let found = streams.find(|(_, stream)| {
        stream.context == context && stream.kind == StreamKind::Blocking && stream.capture.is_some()
    });
    found.map(|(handle, _)| *handle)
}
