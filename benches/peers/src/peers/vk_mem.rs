//! `vk-mem`: the virtual blocks of AMD's Vulkan Memory Allocator, which is C++:
//! two-level segregated fit, with its books outside of the memory.

use vk_mem::{
    VirtualAllocation, VirtualAllocationCreateFlags, VirtualAllocationCreateInfo, VirtualBlock,
    VirtualBlockCreateInfo,
};

use crate::peer::Placer;

/// A virtual block; what is in it when it is dropped is given up.
pub(crate) struct Virtual(VirtualBlock);

// SAFETY: the object is used through this handle only, and by one thread at a
// time; it has no ties to a thread.
#[expect(unsafe_code, reason = "the crate does not say it")]
unsafe impl Send for Virtual {}

impl Drop for Virtual {
    #[expect(unsafe_code, reason = "the original asserts that it is empty")]
    fn drop(&mut self) {
        // SAFETY: handles that are left are not used again.
        unsafe { self.0.clear() }
    }
}

impl Placer for Virtual {
    type Block = (VirtualAllocation, u64);
    const NAME: &'static str = "vk-mem, virtual block";

    fn over(units: usize, _: usize) -> Self {
        let options = VirtualBlockCreateInfo {
            size: units as u64,
            ..VirtualBlockCreateInfo::default()
        };
        Self(VirtualBlock::new(options).expect("host memory"))
    }

    #[inline]
    #[expect(unsafe_code, reason = "a function of C++")]
    fn place(&mut self, units: usize) -> Option<(VirtualAllocation, u64)> {
        let request = VirtualAllocationCreateInfo {
            size: units as u64,
            alignment: 1,
            user_data: 0,
            flags: VirtualAllocationCreateFlags::empty(),
        };
        // SAFETY: the size is not zero, and the alignment a power of two.
        unsafe { self.0.allocate(request) }.ok()
    }

    fn first(block: &(VirtualAllocation, u64)) -> usize {
        block.1 as usize
    }

    #[inline]
    #[expect(unsafe_code, reason = "a function of C++")]
    fn free(&mut self, (mut block, _): (VirtualAllocation, u64)) {
        // SAFETY: the block is one of this object's, and is given back once.
        unsafe { self.0.free(&mut block) }
    }
}
