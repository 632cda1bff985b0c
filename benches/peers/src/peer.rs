//! What is compared, and what each is given.
//!
//! A [`Peer`] serves requests one after another and has its caller keep the
//! handles. A [`Placer`] knows of one region only, and counts it in units; in a
//! [`Region`] of the device it is a peer.

use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocator, DeviceLayout, DevicePtr, DeviceType};

/// What sizes are rounded up to, in bytes, and what blocks are aligned to.
pub(crate) const UNIT: usize = 256;

/// What a peer is made over.
#[derive(Clone)]
pub(crate) struct Room {
    /// Where all its memory is to come from. It has no more than `bytes`.
    pub(crate) device: FakeDevice,
    /// The most that it may take.
    pub(crate) bytes: usize,
    /// The most blocks that it is asked for at one time.
    pub(crate) blocks: usize,
}

impl Room {
    pub(crate) fn new(bytes: usize, blocks: usize) -> Self {
        let device = FakeDevice::builder(DeviceType::Cuda)
            .capacity(bytes)
            .build();
        Self {
            device,
            bytes,
            blocks,
        }
    }
}

/// Memory of the device, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Segment {
    device: FakeDevice,
    ptr: DevicePtr,
    layout: DeviceLayout,
}

impl Segment {
    pub(crate) fn take(device: &FakeDevice, size: usize) -> Option<Self> {
        let layout = DeviceLayout::new(size, UNIT).ok()?;
        let ptr = device.allocate(layout, 0).ok()?;
        let device = device.clone();
        Some(Self {
            device,
            ptr,
            layout,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.ptr.addr()
    }
}

impl Drop for Segment {
    #[expect(unsafe_code, reason = "gives a block back")]
    fn drop(&mut self) {
        // SAFETY: the block was allocated with the layout, and is given back once.
        let freed = unsafe { self.device.deallocate(self.ptr, self.layout, 0) };
        freed.expect("a block of the device");
    }
}

/// Serves requests one after another.
pub(crate) trait Peer: Send + Sized + 'static {
    /// What a caller keeps of a block.
    type Block: Send;

    /// As the tables name it.
    const NAME: &'static str;

    /// Whether memory is taken from the device as it is needed, and not all at the
    /// beginning.
    const GROWS: bool = false;

    fn over(room: &Room) -> Self;

    /// A block of `size` bytes, if there is room.
    fn allocate(&mut self, size: usize) -> Option<Self::Block>;

    /// Where a block is on the device.
    fn address(&mut self, block: &Self::Block) -> usize;

    fn free(&mut self, block: Self::Block);
}

/// Places requests in so many units, numbered from 0.
pub(crate) trait Placer: Send + 'static {
    type Block: Send;
    const NAME: &'static str;

    /// Over `units` units, for at most `blocks` blocks at one time.
    fn over(units: usize, blocks: usize) -> Self;

    /// A block of `units` units, if there is room.
    fn place(&mut self, units: usize) -> Option<Self::Block>;

    /// The first unit of a block.
    fn first(block: &Self::Block) -> usize;

    fn free(&mut self, block: Self::Block);
}

/// A region of the device, and what places blocks in it.
pub(crate) struct Region<P> {
    placer: P,
    memory: Segment,
}

impl<P: Placer> Peer for Region<P> {
    type Block = P::Block;
    const NAME: &'static str = P::NAME;

    fn over(room: &Room) -> Self {
        Self {
            placer: P::over(room.bytes / UNIT, room.blocks),
            memory: Segment::take(&room.device, room.bytes).expect("all that there is"),
        }
    }

    #[inline]
    fn allocate(&mut self, size: usize) -> Option<Self::Block> {
        self.placer.place(size.div_ceil(UNIT))
    }

    #[inline]
    fn address(&mut self, block: &Self::Block) -> usize {
        self.memory.address() + P::first(block) * UNIT
    }

    #[inline]
    fn free(&mut self, block: Self::Block) {
        self.placer.free(block);
    }
}
