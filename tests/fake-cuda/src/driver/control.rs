//! What tests ask of the loaded library, in words.
//!
//! A command is text and so is its answer, so that the two copies of this crate
//! need not agree on the layout of anything.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::{FromStr, SplitWhitespace};

use super::exports::NAMES;
use super::settings::Schedule;
use super::state::State;
use super::{call, fault, report, thread};

/// The version of the commands.
const VERSION: u32 = 1;

type Sink = unsafe extern "C" fn(data: *mut c_void, text: *const u8, len: usize);

/// The version of the commands that this copy understands.
#[unsafe(no_mangle)]
extern "C" fn fakecuda_version() -> u32 {
    VERSION
}

/// Does what `len` bytes of text at `text` say, and gives the answer to `sink`.
/// Returns 0, or 1 if the answer is a complaint.
#[unsafe(no_mangle)]
unsafe extern "C" fn fakecuda_command(
    text: *const u8,
    len: usize,
    sink: Sink,
    data: *mut c_void,
) -> i32 {
    // SAFETY: the caller passes that many bytes, which it keeps meanwhile.
    let text = unsafe { std::slice::from_raw_parts(text, len) };
    let text = String::from_utf8_lossy(text);
    let answer = catch_unwind(AssertUnwindSafe(|| command(&text)))
        .unwrap_or_else(|_| Err(String::from("the fake driver itself panicked")));
    let (code, answer) = match answer {
        Ok(answer) => (0, answer),
        Err(answer) => (1, answer),
    };
    // SAFETY: the caller passes a function that takes text with this argument.
    unsafe { sink(data, answer.as_ptr(), answer.len()) };
    code
}

/// Reads `len` bytes of device memory as they are now, without doing work.
/// Returns 0, or 1 if they are not in one block.
#[unsafe(no_mangle)]
unsafe extern "C" fn fakecuda_read(addr: u64, out: *mut u8, len: usize) -> i32 {
    // SAFETY: the caller passes room for that many bytes, and no one else has
    // it meanwhile.
    let out = unsafe { std::slice::from_raw_parts_mut(out, len) };
    let state = call::lock();
    let found = state.device_of(addr).and_then(|device| {
        let memory = &state.devices.get(device)?.memory;
        let found = memory.find(addr)?;
        let block = memory.block(found.base, found.id)?;
        (found.size - found.offset >= len).then_some((block, found.offset))
    });
    match found {
        Some((block, offset)) => {
            block.bytes.read(offset, out);
            0
        }
        None => 1,
    }
}

fn command(text: &str) -> Result<String, String> {
    let mut words = text.split_whitespace();
    let mut answer = String::new();
    match words.next().unwrap_or_default() {
        "live" => answer = report::live(&call::lock()),
        "violations" => answer = call::lock().violations.join("\n"),
        "total" => answer = fault::counts().iter().sum::<u64>().to_string(),
        "armed" => answer = call::lock().faults.armed().to_string(),
        "fired" => answer = call::lock().faults.fired.to_string(),
        "count" => {
            let name = function(&mut words)?;
            let counts = fault::counts();
            answer = counts.get(name).copied().unwrap_or(0).to_string();
        }
        "counts" => {
            for (name, count) in NAMES.iter().zip(fault::counts()) {
                if count != 0 {
                    let _ = writeln!(answer, "{name} {count}");
                }
            }
        }
        "calls" => {
            for record in &call::lock().faults.records {
                let name = NAMES.get(record.name).copied().unwrap_or_default();
                let _ = writeln!(
                    answer,
                    "{name} {} {} {} {} {} {} {}",
                    record.thread,
                    record.context,
                    record.device,
                    record.ptr,
                    record.size,
                    record.stream,
                    record.code
                );
            }
        }
        "exports" => answer = NAMES.join("\n"),
        "current" => {
            let current = thread::current().unwrap_or(0);
            let context = call::lock()
                .contexts
                .get(&current)
                .map(|context| context.device);
            let device = context.map_or(-1, |device| device as i64);
            answer = format!("{current} {device} {}", thread::height());
        }
        "run" => {
            let mut call = call::outside();
            match words.next() {
                None => call.finish_all(),
                Some("steps") => call.run_steps(number(words.next())?),
                Some("stream") => call.finish_stream(number(words.next())?),
                Some(word) => return Err(format!("nothing to run: {word}")),
            }
        }
        "reset" => call::lock().reset(),
        "clear" => {
            call::outside().finish_all();
            let mut state = call::lock();
            state.violations.clear();
            state.faults.disarm();
            state.clear_calls();
            state.faults.fired = 0;
            state.settings.clear();
        }
        _ => configure(&mut call::lock(), text)?,
    }
    Ok(answer)
}

/// Does a command that only sets something.
pub(super) fn configure(state: &mut State, text: &str) -> Result<(), String> {
    let mut words = text.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let settings = &mut state.settings;
    let fixed = matches!(verb, "devices");
    if fixed && state.initialized {
        return Err(format!("{verb} can not change after cuInit; reset first"));
    }
    match verb {
        "devices" => settings.devices = number(words.next())?,
        "total_memory" => settings.total_memory = number(words.next())?,
        "device_memory" => {
            let device = number(words.next())?;
            settings.device_memory.insert(device, number(words.next())?);
        }
        "host_memory" => settings.host_memory = number(words.next())?,
        "attribute" => {
            let (device, attribute) = (number(words.next())?, number(words.next())?);
            let value = number(words.next())?;
            settings.attributes.insert((device, attribute), value);
        }
        "driver_version" => settings.driver_version = number(words.next())?,
        "peer_access" => settings.peer_access = flag(words.next())?,
        "reuse" => settings.reuse = flag(words.next())?,
        "strict_families" => settings.strict_families = flag(words.next())?,
        "shut_down" => settings.shut_down = flag(words.next())?,
        "shut_down_at_exit" => settings.shut_down_at_exit = flag(words.next())?,
        "record" => settings.record = flag(words.next())?,
        "capture_status" => settings.capture_status = words.next().map(parse).transpose()?,
        "schedule" => match words.next() {
            Some("eager") => settings.schedule = Schedule::Eager,
            Some("delayed") => settings.schedule = Schedule::Delayed,
            Some("random") => {
                settings.schedule = Schedule::Random;
                let seed: u64 = number(words.next())?;
                state.random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            }
            other => return Err(format!("no schedule: {other:?}")),
        },
        "fail" => {
            let name = function(&mut words)?;
            let (nth, code) = (number(words.next())?, number(words.next())?);
            state.faults.arm(Some(name), nth, code);
        }
        "fail_any" => {
            let (nth, code) = (number(words.next())?, number(words.next())?);
            state.faults.arm(None, nth, code);
        }
        "disarm" => state.faults.disarm(),
        "clear_calls" => state.clear_calls(),
        "clear_violations" => state.violations.clear(),
        _ => return Err(format!("no command: {verb}")),
    }
    Ok(())
}

fn function(words: &mut SplitWhitespace<'_>) -> Result<usize, String> {
    let name = words.next().unwrap_or_default();
    fault::number_of(name).ok_or_else(|| format!("the fake driver has no function {name}"))
}

fn flag(word: Option<&str>) -> Result<bool, String> {
    Ok(number::<u8>(word)? != 0)
}

fn number<T: FromStr>(word: Option<&str>) -> Result<T, String> {
    parse(word.unwrap_or_default())
}

fn parse<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("not a number: {word:?}"))
}
