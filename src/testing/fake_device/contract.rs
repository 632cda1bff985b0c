//! A fake device as an allocator.
//!
//! Rank 8. Part of `testing::fake_device`. Imports `allocator` and the words.
//!
//! Host memory is touched last, when all of a call is known to be right.

use std::ptr;

use super::FakeDevice;
use super::addresses::touches_fake;
use super::calls::Call;
use super::queue::Source;
use super::violations::Misuse;
use crate::address::DevicePtr;
use crate::allocator::{DeviceAllocator, MemoryInfo, host_bytes};
use crate::device::{DeviceIndex, DeviceType};
use crate::error::{Operation, Result};
use crate::layout::DeviceLayout;

/// The most host memory that a copy to the host takes.
const CHUNK: usize = 1 << 16;

// SAFETY: by number of the promises:
// 1. Both answers are constants of the fake.
// 2. A block stays in the map of its device until it is given back.
// 3. and 4. `Memory` places blocks at aligned addresses that are in no live one.
// 5. The host can not read the memory.
// 6. Host bytes are read and written before a copy returns. Work that is delayed
//    is done before anything that could tell.
// 7. Calls are checked before anything changes; a block is removed only by a
//    call that succeeds or finds the driver shut down.
// 8. Calls with no bytes are refused.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl DeviceAllocator for FakeDevice {
    fn device_type(&self) -> DeviceType {
        self.shared.config.device_type
    }

    fn device_count(&self) -> usize {
        self.shared.config.device_count
    }

    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        let mut call = Call::new(Operation::Allocate, index);
        call.size = layout.size();
        call.align = Some(layout.align());
        self.shared.perform(call, |state, config, call| {
            state.allocate(config, call, layout)
        })
    }

    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        let mut call = Call::new(Operation::Deallocate, index).on(ptr, layout.size());
        call.align = Some(layout.align());
        self.shared.perform(call, |state, config, call| {
            state.deallocate(config, call, ptr, layout)
        })
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        let call = Call::new(Operation::CopyHostToDevice, index).on(dst, size);
        self.shared.perform(call, |state, config, _| {
            let (device, dst) = state.range(config, dst, size, index)?;
            check_host(src, size)?;
            state.check_up(config, index)?;
            let mut bytes = host_bytes(size, 0)?;
            // SAFETY: the caller promises that `src` is valid for reads of `size`
            // bytes, and `bytes` has `size` bytes of its own.
            unsafe { ptr::copy_nonoverlapping(src, bytes.as_mut_ptr(), size) };
            Ok(state.submit(config, device, dst, Source::Host(bytes))?)
        })
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        let call = Call::new(Operation::CopyDeviceToHost, index).on(src, size);
        self.shared.perform(call, |state, config, _| {
            let (device, src) = state.range(config, src, size, index)?;
            check_host(dst, size)?;
            state.check_up(config, index)?;
            let memory = state.settled(device, src)?;
            let Some(block) = memory.blocks.get(&src.block) else {
                return Ok(());
            };
            let mut piece = host_bytes(size.min(CHUNK), 0)?;
            for done in (0..size).step_by(CHUNK) {
                let len = size.saturating_sub(done).min(CHUNK);
                if let Some(piece) = piece.get_mut(..len) {
                    block.contents.read(src.offset.saturating_add(done), piece);
                    let to = dst.wrapping_add(done);
                    // SAFETY: the caller promises that `dst` is valid for writes
                    // of `size` bytes, of which these are `len` from `done` on.
                    unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), to, len) };
                }
            }
            Ok(())
        })
    }

    unsafe fn copy_device_to_device(
        &self,
        dst: DevicePtr,
        dst_index: DeviceIndex,
        src: DevicePtr,
        src_index: DeviceIndex,
        size: usize,
    ) -> Result<()> {
        let mut call = Call::new(Operation::CopyDeviceToDevice, dst_index).on(dst, size);
        call.source = Some((src, src_index));
        self.shared.perform(call, |state, config, _| {
            let (dst_device, to) = state.range(config, dst, size, dst_index)?;
            let (src_device, from) = state.range(config, src, size, src_index)?;
            if dst.addr().abs_diff(src.addr()) < size {
                return Err(Misuse::Overlap { dst, src, size }.into());
            }
            state.check_up(config, dst_index)?;
            if dst_device == src_device {
                let source = Source::Block {
                    src: from,
                    len: size,
                };
                return Ok(state.submit(config, dst_device, to, source)?);
            }
            let memory = state.settled(src_device, from)?;
            let pieces = match memory.blocks.get(&from.block) {
                Some(block) => block.contents.pieces(from.offset, size),
                None => Vec::new(),
            };
            let memory = state.settled(dst_device, to)?;
            if let Some(block) = memory.blocks.get_mut(&to.block) {
                for piece in &pieces {
                    block.contents.put(to.offset, piece);
                }
            }
            Ok(())
        })
    }

    unsafe fn fill(&self, dst: DevicePtr, byte: u8, size: usize, index: DeviceIndex) -> Result<()> {
        let call = Call::new(Operation::Fill, index).on(dst, size);
        self.shared.perform(call, |state, config, _| {
            let (device, dst) = state.range(config, dst, size, index)?;
            state.check_up(config, index)?;
            let source = Source::Byte { byte, len: size };
            Ok(state.submit(config, device, dst, source)?)
        })
    }

    fn memory_info(&self, index: DeviceIndex) -> Result<Option<MemoryInfo>> {
        let call = Call::new(Operation::MemoryInfo, index);
        self.shared.perform(call, |state, config, _| {
            let device = config.check_index(index)?;
            state.check_up(config, index)?;
            Ok(state.memory_info(config, device)?)
        })
    }

    fn synchronize(&self, index: DeviceIndex) -> Result<()> {
        let call = Call::new(Operation::Synchronize, index);
        self.shared.perform(call, |state, config, _| {
            let device = config.check_index(index)?;
            state.check_up(config, index)?;
            Ok(state.finish(device)?)
        })
    }

    fn trim(&self, index: DeviceIndex) -> Result<usize> {
        let call = Call::new(Operation::Trim, index);
        self.shared.perform(call, |state, config, _| {
            config.check_index(index)?;
            state.check_up(config, index)?;
            Ok(0)
        })
    }
}

/// Checks that `ptr` may be host memory of `size` bytes, without reading it.
fn check_host(ptr: *const u8, size: usize) -> Result<(), Misuse> {
    if ptr.is_null() {
        return Err(Misuse::NullHostPointer);
    }
    let addr = ptr.addr();
    if touches_fake(addr, size) {
        return Err(Misuse::DeviceAddress { addr });
    }
    Ok(())
}
