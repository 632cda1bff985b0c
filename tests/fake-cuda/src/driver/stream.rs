//! Streams: queues of work, each done in the order in which it was given.
//!
//! Work of a stream is counted: `submitted` is what it was given and `completed`
//! what is done. A wait for something is a stream and such a number, so an event
//! is no more than that.

use std::collections::VecDeque;

use super::call::Call;
use super::capture::Capture;
use super::code::{Code, Done};
use super::operation::Operation;
use super::{quick, thread};

/// The handle of the null stream that waits for others.
const LEGACY: u64 = 1;

/// The handle of the stream of the calling thread.
const PER_THREAD: u64 = 2;

/// How a stream waits for others without being told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// Waits for all blocking ones of its context, and they for it.
    Null,
    /// Waits for the null stream.
    Blocking,
    /// Waits for none.
    NonBlocking,
}

/// A place in a stream: all work up to and with this number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) stream: u64,
    pub(super) number: u64,
}

/// A piece of work, and what must be done before.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) needs: Vec<Ticket>,
    pub(super) operation: Operation,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) context: u64,
    pub(super) device: usize,
    pub(super) kind: StreamKind,
    /// Whether the program made it, and has to destroy it.
    pub(super) owned: bool,
    pub(super) priority: i32,
    pub(super) queue: VecDeque<Work>,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    /// Whether a host function of it runs.
    pub(super) busy: bool,
    /// Destroyed by the program, and kept until its work is done.
    pub(super) destroyed: bool,
    pub(super) capture: Option<Capture>,
}

impl Stream {
    pub(super) fn new(context: u64, device: usize, kind: StreamKind, priority: i32) -> Self {
        Self {
            context,
            device,
            kind,
            owned: false,
            priority,
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
            busy: false,
            destroyed: false,
            capture: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.completed == self.submitted
    }
}

/// Makes a stream in the current context.
pub(super) fn create(call: &mut Call, flags: u32, priority: i32) -> Done<u64> {
    let (context, device) = call.current_device()?;
    let kind = match flags {
        0 => StreamKind::Blocking,
        1 => StreamKind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    let handle = call.next_handle();
    let mut stream = Stream::new(context, device, kind, priority.clamp(-5, 0));
    stream.owned = true;
    call.streams.insert(handle, stream);
    call.note(0, 0, handle);
    Ok(handle)
}

/// Destroys a stream; what it was given is done all the same.
pub(super) fn destroy(call: &mut Call, handle: u64) -> Done {
    call.note(0, 0, handle);
    let stream = call.streams.get_mut(&handle);
    let stream = stream.filter(|stream| stream.owned && !stream.destroyed);
    let Some(stream) = stream else {
        call.violate(format!("{handle:#x} is no stream to destroy"));
        return Err(Code::INVALID_HANDLE);
    };
    stream.destroyed = true;
    let captured = stream.capture.take().is_some();
    if stream.is_idle() {
        call.streams.remove(&handle);
    }
    if captured {
        call.captures -= 1;
    }
    quick::refresh(call);
    Ok(())
}

/// The stream that a handle stands for, in a usable context.
pub(super) fn resolve(call: &mut Call, handle: u64) -> Done<u64> {
    match handle {
        0 | LEGACY => {
            let current = call.current()?;
            Ok(call.usable(current)?.null_stream)
        }
        PER_THREAD => of_thread(call),
        _ => {
            let stream = call.streams.get(&handle);
            match stream.filter(|stream| stream.owned && !stream.destroyed) {
                Some(stream) => {
                    call.usable(stream.context)?;
                    Ok(handle)
                }
                None => {
                    call.violate(format!("{handle:#x} is no stream, or a destroyed one"));
                    Err(Code::INVALID_HANDLE)
                }
            }
        }
    }
}

/// The same, where a context must be current and be that of the stream.
pub(super) fn resolve_here(call: &mut Call, handle: u64) -> Done<u64> {
    let current = call.current()?;
    let stream = resolve(call, handle)?;
    let home = call.streams.get(&stream).map(|stream| stream.context);
    if home != Some(current) {
        call.violate(String::from(
            "the stream is of another context than the current",
        ));
        return Err(Code::INVALID_HANDLE);
    }
    Ok(stream)
}

fn of_thread(call: &mut Call) -> Done<u64> {
    let (current, device) = call.current_device()?;
    let number = thread::number();
    let made = call.usable(current)?.thread_streams.get(&number).copied();
    if let Some(stream) = made {
        return Ok(stream);
    }
    let handle = call.next_handle();
    let stream = Stream::new(current, device, StreamKind::Blocking, 0);
    call.streams.insert(handle, stream);
    if let Some(context) = call.contexts.get_mut(&current) {
        context.thread_streams.insert(number, handle);
    }
    Ok(handle)
}

/// What a stream waits for without being told, when it is given work now.
pub(super) fn implied_needs(call: &Call, handle: u64) -> Vec<Ticket> {
    let mut needs = Vec::new();
    let Some(stream) = call.streams.get(&handle) else {
        return needs;
    };
    match stream.kind {
        StreamKind::NonBlocking => {}
        StreamKind::Blocking => {
            let context = call.contexts.get(&stream.context);
            if let Some(context) = context {
                needs.extend(everything(call, context.null_stream));
            }
        }
        StreamKind::Null => {
            for (other, candidate) in &call.streams {
                let blocking = candidate.kind == StreamKind::Blocking;
                if blocking && candidate.context == stream.context {
                    needs.extend(everything(call, *other));
                }
            }
        }
    }
    needs
}

/// All that a stream was given so far, unless it is done.
pub(super) fn everything(call: &Call, handle: u64) -> Option<Ticket> {
    let stream = call.streams.get(&handle)?;
    (!stream.is_idle()).then_some(Ticket {
        stream: handle,
        number: stream.submitted,
    })
}
