//! Allocators as users of device memory need them: shared by threads, and freed by
//! address.

use std::fmt;

use device_memory::adaptor::{Pool, PoolBuilder};
use device_memory::testing::FakeDevice;
use device_memory::{
    Device, DeviceAllocator, DeviceIndex, DeviceLayout, DevicePtr, DeviceType, ErrorKind,
    OutOfMemory, Result,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::peer::{Peer, Room, UNIT};

/// How to make an allocator that threads share.
pub(crate) trait Recipe: Send + Sync + 'static {
    type Allocator: DeviceAllocator + 'static;
    const NAME: &'static str;
    const GROWS: bool;
    fn over(room: &Room) -> Self::Allocator;
}

/// The pool, with all its memory from the beginning, that keeps blocks or none.
pub(crate) struct Own<const KEEPS: bool>;

impl<const KEEPS: bool> Recipe for Own<KEEPS> {
    type Allocator = Pool<FakeDevice>;
    const NAME: &'static str = match KEEPS {
        true => "pool",
        false => "pool, nothing kept",
    };
    const GROWS: bool = false;

    fn over(room: &Room) -> Pool<FakeDevice> {
        let options = PoolBuilder::new().initial(room.bytes).limit(room.bytes);
        let options = match KEEPS {
            true => options,
            false => options.cache_limit(0),
        };
        options.build(room.device.clone())
    }
}

/// The pool as it is without options.
pub(crate) struct OwnGrowing;

impl Recipe for OwnGrowing {
    type Allocator = Pool<FakeDevice>;
    const NAME: &'static str = "pool, growing";
    const GROWS: bool = true;

    fn over(room: &Room) -> Pool<FakeDevice> {
        Pool::over(room.device.clone())
    }
}

/// A peer behind a lock, with a map from addresses to its handles.
pub(crate) struct Locked<P>(std::marker::PhantomData<fn() -> P>);

impl<P: Peer> Recipe for Locked<P> {
    type Allocator = LockedPeer<P>;
    const NAME: &'static str = P::NAME;
    const GROWS: bool = P::GROWS;

    fn over(room: &Room) -> LockedPeer<P> {
        LockedPeer {
            books: Mutex::new(Books {
                peer: P::over(room),
                blocks: FxHashMap::default(),
            }),
            device: room.device.clone(),
        }
    }
}

struct Books<P: Peer> {
    peer: P,
    blocks: FxHashMap<usize, P::Block>,
}

pub(crate) struct LockedPeer<P: Peer> {
    books: Mutex<Books<P>>,
    device: FakeDevice,
}

impl<P: Peer> fmt::Debug for LockedPeer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(P::NAME).finish_non_exhaustive()
    }
}

impl<P: Peer> LockedPeer<P> {
    #[cold]
    fn refused(&self, layout: DeviceLayout, index: DeviceIndex) -> device_memory::Error {
        let device = Device::new(self.device_type(), index);
        ErrorKind::from(OutOfMemory::new(device, layout)).into()
    }
}

// SAFETY: by number of the promises,
// 1., 5. and 6. Those of the device.
// 2. and 3. A block is a part of the device's memory that the peer holds, and the
//    peers place blocks apart from each other.
// 4. Blocks are at multiples of 256 bytes; more is refused.
// 7. An address that is not in the map is refused before anything is done.
// 8. The peers are asked for one byte at least.
// 9. The device is that of the process.
// 10. Addresses are in blocks of the device.
#[expect(unsafe_code, reason = "implements an unsafe trait")]
unsafe impl<P: Peer> DeviceAllocator for LockedPeer<P> {
    fn device_type(&self) -> DeviceType {
        self.device.device_type()
    }

    fn device_count(&self) -> usize {
        1
    }

    #[inline]
    fn allocate(&self, layout: DeviceLayout, index: DeviceIndex) -> Result<DevicePtr> {
        self.check_index(index)?;
        if layout.align() > UNIT {
            return Err(self.refused(layout, index));
        }
        let mut books = self.books.lock();
        let books = &mut *books;
        let block = books.peer.allocate(layout.size().max(1));
        let block = block.ok_or_else(|| self.refused(layout, index))?;
        let address = books.peer.address(&block);
        books.blocks.insert(address, block);
        DevicePtr::from_addr(address).ok_or_else(|| self.refused(layout, index))
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        ptr: DevicePtr,
        layout: DeviceLayout,
        index: DeviceIndex,
    ) -> Result<()> {
        self.check_index(index)?;
        let mut books = self.books.lock();
        let books = &mut *books;
        let block = books.blocks.remove(&ptr.addr());
        let block = block.ok_or_else(|| self.refused(layout, index))?;
        books.peer.free(block);
        Ok(())
    }

    unsafe fn copy_host_to_device(
        &self,
        dst: DevicePtr,
        src: *const u8,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.device.copy_host_to_device(dst, src, size, index) }
    }

    unsafe fn copy_device_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        size: usize,
        index: DeviceIndex,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the same.
        unsafe { self.device.copy_device_to_host(dst, src, size, index) }
    }
}

/// One caller of a shared allocator, who keeps addresses and layouts.
pub(crate) struct Caller<R: Recipe>(R::Allocator);

impl<R: Recipe> Peer for Caller<R> {
    type Block = (DevicePtr, DeviceLayout);
    const NAME: &'static str = R::NAME;
    const GROWS: bool = R::GROWS;

    fn over(room: &Room) -> Self {
        Self(R::over(room))
    }

    #[inline]
    fn allocate(&mut self, size: usize) -> Option<Self::Block> {
        let layout = DeviceLayout::new(size, UNIT).ok()?;
        Some((self.0.allocate(layout, 0).ok()?, layout))
    }

    fn address(&mut self, (ptr, _): &Self::Block) -> usize {
        ptr.addr()
    }

    #[inline]
    #[expect(unsafe_code, reason = "gives a block back")]
    fn free(&mut self, (ptr, layout): Self::Block) {
        // SAFETY: the block is live, and nothing uses it.
        unsafe { self.0.deallocate(ptr, layout, 0) }.expect("a block");
    }
}
