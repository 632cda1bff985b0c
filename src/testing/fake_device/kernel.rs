//! Computing on a fake device.
//!
//! Rank 8. Part of `testing::fake_device`. Imports `span` and the words.
//!
//! A kernel is a function of the host that sees copies of what it reads. That is
//! a simulation of what a kernel does, not of how or when.

use super::FakeDevice;
use super::calls::Call;
use super::state::{Config, Refusal, State};
use super::violations::Misuse;
use crate::address::DevicePtr;
use crate::allocator::host_bytes;
use crate::device::{Device, DeviceIndex};
use crate::error::{ErrorKind, Operation, Result};
use crate::span::{DeviceSpan, DeviceSpanMut};

/// A range that a kernel uses: where it is and how long.
type Range = (DevicePtr, usize);

impl FakeDevice {
    /// Runs `kernel` on the device `index`, over the bytes of `reads` and of
    /// `writes`, in this order.
    ///
    /// What the kernel leaves in the bytes of `writes` is in the device's memory
    /// when this returns. Delayed copies are done before. No bytes cross between
    /// host and device in what is simulated: one call,
    /// [`Launch`](Operation::Launch), is recorded, with all bytes as its size.
    ///
    /// The kernel runs under no lock. If it panics, nothing is written. Bytes that it
    /// adds to those of a range are dropped, and those that it takes away stay as they
    /// were.
    ///
    /// # Errors
    ///
    /// - [`DeviceMismatch`](ErrorKind::DeviceMismatch): a span is of another device.
    /// - [`InvalidDevice`](ErrorKind::InvalidDevice): there is no such index.
    /// - [`Backend`](ErrorKind::Backend): a span is not of this fake; that is a
    ///   [`Violation`](super::Violation) too.
    /// - [`ShutDown`](ErrorKind::ShutDown): the driver is.
    /// - [`OutOfMemory`](ErrorKind::OutOfMemory): the host has no room for the copies.
    /// - [`ForkedProcess`](ErrorKind::ForkedProcess): the fake is a parent process's.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use device_memory::testing::FakeDevice;
    /// use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType};
    ///
    /// let fake = FakeDevice::new(DeviceType::Cuda, 1);
    /// let layout = DeviceLayout::from_size(2)?;
    /// let mut buffer = DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout, 0)?;
    /// buffer.copy_from_host(&[1, 2])?;
    ///
    /// fake.launch(0, &[], &mut [buffer.as_span_mut()], |_, writes| {
    ///     for byte in &mut writes[0] {
    ///         *byte *= 10;
    ///     }
    /// })?;
    ///
    /// assert_eq!(buffer.to_vec()?, [10, 20]);
    /// # Ok::<(), device_memory::Error>(())
    /// ```
    pub fn launch(
        &self,
        index: DeviceIndex,
        reads: &[DeviceSpan<'_>],
        writes: &mut [DeviceSpanMut<'_>],
        kernel: impl FnOnce(&[Vec<u8>], &mut [Vec<u8>]),
    ) -> Result<()> {
        let expected = self.shared.device(index);
        let read = ranges(expected, reads.iter().copied())?;
        let written = ranges(expected, writes.iter().map(|span| span.as_span()))?;
        let mut call = Call::new(Operation::Launch, index);
        let sizes = read.iter().chain(&written).map(|&(_, size)| size);
        call.size = sizes.fold(0, usize::saturating_add);
        let (inputs, mut outputs) = self.shared.perform(call, |state, config, _| {
            let device = config.check_index(index)?;
            state.check_up(config, index)?;
            state.finish(device)?;
            let inputs = load(state, config, index, &read)?;
            Ok((inputs, load(state, config, index, &written)?))
        })?;
        kernel(&inputs, &mut outputs);
        let mut state = self.shared.lock();
        for (&(ptr, size), bytes) in written.iter().zip(&outputs) {
            if let Ok((device, spot)) = state.range(&self.shared.config, ptr, size, index)
                && let Some(memory) = state.devices.get_mut(device)
                && let Some(block) = memory.blocks.get_mut(&spot.block)
            {
                let bytes = bytes.get(..size).unwrap_or(bytes);
                block.contents.write(spot.offset, bytes);
            }
        }
        Ok(())
    }
}

/// Where the spans are, which must be on the device `expected`.
fn ranges<'a>(expected: Device, spans: impl Iterator<Item = DeviceSpan<'a>>) -> Result<Vec<Range>> {
    spans
        .map(|span| {
            let found = span.device();
            if found == expected {
                Ok((span.ptr(), span.len()))
            } else {
                Err(ErrorKind::DeviceMismatch { expected, found }.into())
            }
        })
        .collect()
}

/// The bytes of ranges as they are now.
fn load(
    state: &mut State,
    config: &Config,
    index: DeviceIndex,
    ranges: &[Range],
) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut loaded = Vec::new();
    for &(ptr, size) in ranges {
        let mut bytes = host_bytes(size, 0)?;
        if size != 0 {
            let (device, spot) = state.range(config, ptr, size, index)?;
            let memory = state.devices.get(device);
            let block = memory.and_then(|memory| memory.blocks.get(&spot.block));
            let block = block.ok_or(Misuse::Foreign { ptr })?;
            block.contents.read(spot.offset, &mut bytes);
        }
        loaded.push(bytes);
    }
    Ok(loaded)
}
