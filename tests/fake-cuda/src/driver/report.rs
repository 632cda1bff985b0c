//! What is alive, now and at the exit of the process.

use std::fmt::Write as _;

use super::call;
use super::host::Kind;
use super::state::State;

/// What is alive, one `name value` a line.
pub(super) fn live(state: &State) -> String {
    let mut text = String::new();
    for (index, device) in state.devices.iter().enumerate() {
        let memory = &device.memory;
        let pools = state.pools.values().filter(|pool| pool.device == index);
        let reserved: usize = pools.map(|pool| pool.reserved).sum();
        let _ = writeln!(
            text,
            "device {} {} {} {reserved} {}",
            memory.blocks.len(),
            memory.live,
            memory.peak,
            device.retains
        );
    }
    for (name, kind) in [
        ("pinned", Kind::Pinned),
        ("managed", Kind::Managed),
        ("registered", Kind::Registered),
    ] {
        let blocks = state.host.values().filter(|block| block.kind == kind);
        let (count, bytes) = blocks.fold((0, 0), |(count, bytes), block| {
            (count + 1, bytes + block.size)
        });
        let _ = writeln!(text, "{name} {count} {bytes}");
    }
    let owned = state.streams.values();
    let streams = owned
        .filter(|stream| stream.owned && !stream.destroyed)
        .count();
    let contexts = state
        .contexts
        .values()
        .filter(|context| !context.primary)
        .count();
    let made = state.pools.values().filter(|pool| !pool.is_default).count();
    for (name, count) in [
        ("streams", streams),
        ("events", state.events.len()),
        ("contexts", contexts),
        ("pools", made),
        ("graphs", state.graphs.len()),
        ("pending", state.pending),
    ] {
        let _ = writeln!(text, "{name} {count}");
    }
    text
}

/// Whether anything is alive that the program should have given back.
fn leaks(state: &State) -> bool {
    let devices = state.devices.iter();
    let mut kept = devices.map(|own| own.memory.blocks.len() + own.retains as usize);
    let pools = state.pools.values().any(|pool| !pool.is_default);
    let contexts = state.contexts.values().any(|context| !context.primary);
    let streams = state.streams.values();
    let mut streams = streams.map(|stream| stream.owned && !stream.destroyed);
    kept.any(|count| count != 0)
        || !state.host.is_empty()
        || !state.events.is_empty()
        || pools
        || contexts
        || streams.any(|alive| alive)
}

/// Registers what is done at the exit of the process.
pub(super) fn at_exit() {
    extern "C" fn report() {
        let mut state = call::lock();
        if state.settings.shut_down_at_exit {
            state.settings.shut_down = true;
        }
        if !state.violations.is_empty() {
            let text = state.violations.join("\n");
            end("FAKECUDA_VIOLATION_EXIT", &format!("done wrong:\n{text}\n"));
        }
        if leaks(&state) {
            end(
                "FAKECUDA_LEAK_EXIT",
                &format!("alive at exit:\n{}", live(&state)),
            );
        }
    }
    // SAFETY: `report` lives as long as the library, which is never unloaded.
    unsafe { libc::atexit(report) };
}

/// Ends the process with a text and the code that a variable of the environment
/// names, if there is one.
fn end(variable: &str, text: &str) {
    let code = std::env::var(variable).ok();
    let Some(code) = code.and_then(|code| code.parse::<i32>().ok()) else {
        return;
    };
    let text = format!("fake-cuda: {text}");
    // SAFETY: the bytes are there for the length given.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    // SAFETY: the process is at its end, and nothing after this runs.
    unsafe { libc::_exit(code) };
}
