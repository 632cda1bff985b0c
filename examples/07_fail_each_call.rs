//! Find what leaks by failing each call in turn.
//!
//! `cargo run --example 07_fail_each_call --features testing`

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use device_memory::testing::{ExhaustionError, FakeDevice, fail_each_call};
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, Result};

fn main() -> Result<(), ExhaustionError> {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);

    // Code that uses the owner leaks on none of its error paths.
    let found = fail_each_call(&fake, |allocator| -> Result<_> {
        let layout = DeviceLayout::array::<u8>(256)?;
        let mut first = DeviceMemoryBuffer::create_with(Arc::clone(allocator), layout, 0)?;
        first.copy_from_host(&[7; 256])?;
        first.try_clone()
    })?;

    println!("{} calls, each failed once, nothing leaked", found.calls);
    println!("live bytes: {}", fake.live_bytes());
    Ok(())
}
