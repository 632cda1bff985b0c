//! Allocate, copy in, copy out, and let `drop` free.
//!
//! `cargo run --example 01_allocate`

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use device_memory::{DeviceMemoryBuffer, DeviceType, Result};

fn main() -> Result<()> {
    let mut buffer = DeviceMemoryBuffer::create(16, DeviceType::Cpu, 0)?;
    buffer.copy_from_host(b"sixteen bytes...")?;
    buffer.copy_from_host_at(8, b"BYTES")?;

    let mut bytes = [0; 16];
    buffer.copy_to_host(&mut bytes)?;
    println!("{buffer:?} holds {:?}", String::from_utf8_lossy(&bytes));

    // A failure says what, where and how much, and can be branched on.
    match DeviceMemoryBuffer::create(16, DeviceType::Custom(3), 0) {
        Err(error) if error.is_not_registered() => println!("as expected: {error}"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
