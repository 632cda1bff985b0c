//! Contexts: the primary one of each device, and others.

use std::collections::{BTreeMap, BTreeSet};

use super::call::Call;
use super::code::{Code, Done};
use super::state::Device;
use super::stream::{Stream, StreamKind};
use super::{quick, thread};

/// A context.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) device: usize,
    pub(super) primary: bool,
    pub(super) flags: u32,
    /// The stream of the null handle.
    pub(super) null_stream: u64,
    /// The streams of the per-thread handle, by thread.
    pub(super) thread_streams: BTreeMap<u64, u64>,
    /// The contexts whose memory this one may access.
    pub(super) peers: BTreeSet<u64>,
    /// The error that all calls return from now on.
    pub(super) sticky: Option<Code>,
}

/// The device of a number that a program passed.
pub(super) fn device(call: &Call, ordinal: i32) -> Done<usize> {
    let index = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
    let known = index < call.devices.len();
    known.then_some(index).ok_or(Code::INVALID_DEVICE)
}

/// The same, with what the driver keeps of it.
fn device_mut(call: &mut Call, ordinal: i32) -> Done<(usize, &mut Device)> {
    let index = device(call, ordinal)?;
    let device = call.devices.get_mut(index).ok_or(Code::INVALID_DEVICE)?;
    Ok((index, device))
}

/// Makes the primary context of a device, or counts one more user of it.
pub(super) fn retain(call: &mut Call, ordinal: i32) -> Done<u64> {
    let (index, device) = device_mut(call, ordinal)?;
    device.retains += 1;
    let flags = device.flags;
    if let Some(primary) = device.primary {
        return Ok(primary);
    }
    let handle = create(call, index, true, flags);
    device_mut(call, ordinal)?.1.primary = Some(handle);
    Ok(handle)
}

/// Counts one user less of a primary context, and destroys it with the last.
pub(super) fn release(call: &mut Call, ordinal: i32) -> Done {
    let (index, device) = device_mut(call, ordinal)?;
    let Some(primary) = device.primary else {
        call.violate(format!(
            "the primary context of cuda:{index} is not retained"
        ));
        return Err(Code::INVALID_CONTEXT);
    };
    device.retains -= 1;
    if device.retains == 0 {
        device.primary = None;
        destroy(call, primary);
    }
    Ok(())
}

/// Destroys a primary context whoever uses it.
pub(super) fn reset(call: &mut Call, ordinal: i32) -> Done {
    let (_, device) = device_mut(call, ordinal)?;
    // The users keep their counts; the context is made again when one asks.
    if let Some(primary) = device.primary.take() {
        device.retains = 0;
        destroy(call, primary);
    }
    Ok(())
}

/// Makes a context.
pub(super) fn create(call: &mut Call, device: usize, primary: bool, flags: u32) -> u64 {
    let handle = call.next_handle();
    let null_stream = call.next_handle();
    let stream = Stream::new(handle, device, StreamKind::Null, 0);
    call.streams.insert(null_stream, stream);
    let context = Context {
        device,
        primary,
        flags,
        null_stream,
        thread_streams: BTreeMap::new(),
        peers: BTreeSet::new(),
        sticky: None,
    };
    call.contexts.insert(handle, context);
    handle
}

/// Waits for a context and destroys it with all that belongs to it.
pub(super) fn destroy(call: &mut Call, handle: u64) {
    call.finish_context(handle);
    let Some(context) = call.contexts.remove(&handle) else {
        return;
    };
    let reuse = call.settings.reuse;
    let mut lost = Vec::new();
    if let Some(device) = call.devices.get_mut(context.device) {
        let mine = device.memory.blocks.iter();
        let mine = mine.filter(|(_, block)| block.context == handle);
        lost = mine
            .map(|(base, block)| (*base, block.id, block.size))
            .collect();
    }
    for (base, id, _) in &lost {
        super::allocate::release(call, context.device, *base, *id, reuse);
    }
    let before = call.host.len();
    call.host.retain(|_, block| block.context != handle);
    let lost_host = before - call.host.len();
    let mine = call.streams.values();
    let mine = mine.filter(|stream| stream.context == handle && stream.capture.is_some());
    call.captures -= mine.count();
    call.streams.retain(|_, stream| stream.context != handle);
    call.events.retain(|_, event| event.context != handle);
    quick::refresh(call);
    if !lost.is_empty() || lost_host != 0 {
        let bytes: usize = lost.iter().map(|(_, _, size)| size).sum();
        let index = context.device;
        let count = lost.len() + lost_host;
        call.violate(format!(
            "a context of cuda:{index} is destroyed with {count} allocations \
             ({bytes} bytes of device memory) in it"
        ));
    }
}

/// Makes a context that is not primary, and makes it current.
pub(super) fn create_current(call: &mut Call, ordinal: i32, flags: u32) -> Done<u64> {
    let index = device(call, ordinal)?;
    let handle = create(call, index, false, flags);
    if !thread::push(handle) {
        call.contexts.remove(&handle);
        return Err(Code::OUT_OF_MEMORY);
    }
    Ok(handle)
}

/// Destroys a context that is not primary.
pub(super) fn destroy_own(call: &mut Call, handle: u64) -> Done {
    let context = call.contexts.get(&handle).ok_or(Code::INVALID_CONTEXT)?;
    if context.primary {
        return Err(Code::INVALID_CONTEXT);
    }
    if thread::current() == Some(handle) {
        thread::pop();
    }
    destroy(call, handle);
    Ok(())
}

/// Makes a context current in place of the one that is.
pub(super) fn set_current(call: &mut Call, handle: u64) -> Done {
    if handle != 0 && !call.contexts.contains_key(&handle) {
        call.violate(String::from("a destroyed context is made current"));
        return Err(Code::CONTEXT_IS_DESTROYED);
    }
    if thread::height() == 0 && handle != 0 {
        return push(call, handle);
    }
    thread::set_current(handle);
    Ok(())
}

/// Makes a context current and keeps the one that is, for [`pop`].
pub(super) fn push(call: &mut Call, handle: u64) -> Done {
    if handle == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    if !call.contexts.contains_key(&handle) {
        call.violate(String::from("a destroyed context is pushed"));
        return Err(Code::CONTEXT_IS_DESTROYED);
    }
    if thread::push(handle) {
        Ok(())
    } else {
        call.violate(String::from("too many contexts on the stack of one thread"));
        Err(Code::INVALID_VALUE)
    }
}

/// Undoes [`push`].
pub(super) fn pop(call: &mut Call) -> Done<u64> {
    let Some(handle) = thread::pop() else {
        call.violate(String::from("no context to pop"));
        return Err(Code::INVALID_CONTEXT);
    };
    Ok(handle)
}

/// Lets the current context access the memory of another.
pub(super) fn enable_peer(call: &mut Call, peer: u64, flags: u32) -> Done {
    let (current, device) = call.current_device()?;
    let other = call.usable(peer).map_err(|_| Code::INVALID_CONTEXT)?.device;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if !call.settings.peer_access || other == device {
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    let context = call
        .contexts
        .get_mut(&current)
        .ok_or(Code::INVALID_CONTEXT)?;
    if context.peers.insert(peer) {
        Ok(())
    } else {
        Err(Code::PEER_ACCESS_ALREADY_ENABLED)
    }
}

/// Undoes [`enable_peer`].
pub(super) fn disable_peer(call: &mut Call, peer: u64) -> Done {
    let current = call.current()?;
    let context = call
        .contexts
        .get_mut(&current)
        .ok_or(Code::INVALID_CONTEXT)?;
    if context.peers.remove(&peer) {
        Ok(())
    } else {
        Err(Code::PEER_ACCESS_NOT_ENABLED)
    }
}
