//! Lend parts of a buffer, shared or exclusively.
//!
//! `cargo run --example 03_views`

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use device_memory::{DeviceMemoryBuffer, DeviceType, HostAllocator, Result};

fn main() -> Result<()> {
    let mut buffer = DeviceMemoryBuffer::create_zeroed(12, DeviceType::Cpu, 0)?;

    let (mut head, mut tail) = buffer.as_span_mut().into_split_at(4)?;
    head.fill(0xff)?;
    tail.subspan_mut(0, 4)?
        .copy_from(HostAllocator::span(&[1, 2, 3, 4]))?;

    // Host memory can be a slice; device memory says that it can not.
    println!("{:?}", buffer.as_slice()?);

    // What does not fit is an error with the numbers.
    if let Err(error) = buffer.as_span().subspan(8, 8) {
        println!("{error}");
    }
    Ok(())
}
