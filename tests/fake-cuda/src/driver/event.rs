//! Events: places in streams that can be waited for.

use super::call::Call;
use super::capture;
use super::code::{Code, Done};
use super::operation::Operation;
use super::stream::{self, Ticket};

/// The flag of an event that keeps no time.
const DISABLE_TIMING: u32 = 2;

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) context: u64,
    flags: u32,
    /// Where it was recorded last.
    recorded: Option<Ticket>,
    /// Whether that was in a stream that was capturing.
    captured: bool,
    /// A number in place of a time.
    clock: u64,
}

/// Makes an event in the current context.
pub(super) fn create(call: &mut Call, flags: u32) -> Done<u64> {
    let context = call.current()?;
    if flags > 7 || (flags & 4 != 0 && flags & DISABLE_TIMING == 0) {
        return Err(Code::INVALID_VALUE);
    }
    let handle = call.next_handle();
    let event = Event {
        context,
        flags,
        recorded: None,
        captured: false,
        clock: 0,
    };
    call.events.insert(handle, event);
    Ok(handle)
}

/// Destroys an event; who waits for it goes on waiting.
pub(super) fn destroy(call: &mut Call, handle: u64) -> Done {
    if call.events.remove(&handle).is_none() {
        call.violate(format!("{handle:#x} is no event to destroy"));
        return Err(Code::INVALID_HANDLE);
    }
    Ok(())
}

/// Makes an event the end of all that a stream was given so far.
pub(super) fn record(call: &mut Call, handle: u64, on: u64) -> Done {
    call.note(0, 0, on);
    call.current()?;
    let stream = stream::resolve(call, on)?;
    let context = find(call, handle)?.context;
    let home = call.streams.get(&stream).map(|stream| stream.context);
    if home != Some(context) {
        call.violate(String::from(
            "an event is recorded on a stream of another context",
        ));
        return Err(Code::INVALID_HANDLE);
    }
    let captured = call
        .streams
        .get(&stream)
        .is_some_and(|stream| stream.capture.is_some());
    let ticket = call.submit(stream, Operation::Mark)?;
    let clock = call.next_id();
    if let Some(event) = call.events.get_mut(&handle) {
        event.recorded = Some(ticket);
        event.captured = captured;
        event.clock = clock;
    }
    Ok(())
}

/// Makes the later work of a stream wait for an event.
pub(super) fn wait(call: &mut Call, on: u64, handle: u64) -> Done {
    call.note(0, 0, on);
    call.current()?;
    let stream = stream::resolve(call, on)?;
    let event = find(call, handle)?;
    let (recorded, captured) = (event.recorded, event.captured);
    let capturing = call
        .streams
        .get(&stream)
        .is_some_and(|stream| stream.capture.is_some());
    if captured {
        // Joining a capture by an event is not modelled.
        return if capturing {
            Ok(())
        } else {
            Err(Code::CAPTURED_EVENT)
        };
    }
    let Some(ticket) = recorded else {
        return Ok(());
    };
    if call.is_done(ticket) && !capturing {
        return Ok(());
    }
    call.submit_after(stream, vec![ticket], Operation::Mark)?;
    Ok(())
}

/// Whether an event has come. Asking lets some work be done, so that a program
/// that asks until it has comes to an end.
pub(super) fn query(call: &mut Call, handle: u64) -> Done {
    call.current()?;
    let place = place(call, handle)?;
    call.forbid_in_capture()?;
    let Some(ticket) = place else {
        return Ok(());
    };
    if call.is_done(ticket) {
        return Ok(());
    }
    call.nudge(ticket.stream);
    Err(Code::NOT_READY)
}

/// Waits for an event.
pub(super) fn synchronize(call: &mut Call, handle: u64) -> Done {
    call.current()?;
    let place = place(call, handle)?;
    call.forbid_in_capture()?;
    if let Some(ticket) = place {
        call.run_to(ticket);
    }
    call.waited();
    call.current().map(|_| ())
}

/// A number that grows from event to event; there is no time in a simulation.
pub(super) fn elapsed(call: &mut Call, start: u64, end: u64) -> Done<f32> {
    let mut clocks = [0; 2];
    for (clock, handle) in clocks.iter_mut().zip([start, end]) {
        let event = find(call, handle)?;
        if event.flags & DISABLE_TIMING != 0 || event.recorded.is_none() {
            return Err(Code::INVALID_HANDLE);
        }
        if event.recorded.is_some_and(|ticket| !call.is_done(ticket)) {
            return Err(Code::NOT_READY);
        }
        *clock = event.clock;
    }
    let [start, end] = clocks;
    Ok(end.saturating_sub(start) as f32 * 0.001)
}

fn find(call: &mut Call, handle: u64) -> Done<Event> {
    if let Some(event) = call.events.get(&handle) {
        return Ok(*event);
    }
    call.violate(format!("{handle:#x} is no event, or a destroyed one"));
    Err(Code::INVALID_HANDLE)
}

fn place(call: &mut Call, handle: u64) -> Done<Option<Ticket>> {
    let event = find(call, handle)?;
    if let Some(ticket) = event.recorded.filter(|_| event.captured) {
        capture::spoil(call, ticket.stream);
        return Err(Code::CAPTURED_EVENT);
    }
    Ok(event.recorded)
}
