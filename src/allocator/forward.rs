//! Passing calls on to the allocator that one wraps.
//!
//! Rank 2. Part of `allocator`.

/// Methods of a [`DeviceAllocator`](crate::allocator::DeviceAllocator) that are
/// those of the allocator that an expression over `self` names, by group:
/// `forward!(self => self.upstream; identity, upstream, copies)`.
/// The expression is one that a method can be called on.
///
/// `identity` is what it serves, `copies` all copies and fills, `blocks` allocate
/// and deallocate; the rest is one method each, and guarded if it can fail, by the rule
/// of `allocator::guard`.
macro_rules! forward {
    ($this:ident => $inner:expr; $($group:ident),+) => {
        $($crate::allocator::forward_group!($this => $inner; $group);)+
    };
}

/// One group of [`forward`].
macro_rules! forward_group {
    ($this:ident => $inner:expr; identity) => {
        #[inline]
        fn device_type(&$this) -> $crate::device::DeviceType {
            $inner.device_type()
        }

        #[inline]
        fn device_count(&$this) -> usize {
            $inner.device_count()
        }

        #[inline]
        fn is_host_accessible(&$this) -> bool {
            $inner.is_host_accessible()
        }

        #[inline]
        fn check_index(&$this, index: $crate::device::DeviceIndex) -> $crate::error::Result<()> {
            $inner.check_index(index)
        }

    };
    ($this:ident => $inner:expr; upstream) => {
        #[inline]
        fn upstream(&$this) -> Option<&dyn $crate::allocator::DeviceAllocator> {
            Some(&$inner)
        }
    };
    ($this:ident => $inner:expr; blocks) => {
        #[inline]
        fn allocate(
            &$this,
            layout: $crate::layout::DeviceLayout,
            index: $crate::device::DeviceIndex,
        ) -> $crate::error::Result<$crate::address::DevicePtr> {
            $inner.allocate(layout, index)
        }

        #[inline]
        unsafe fn deallocate(
            &$this,
            ptr: $crate::address::DevicePtr,
            layout: $crate::layout::DeviceLayout,
            index: $crate::device::DeviceIndex,
        ) -> $crate::error::Result<()> {
            // SAFETY: the caller's promises are the same; the block is one of the
            // allocator inside.
            unsafe { $inner.deallocate(ptr, layout, index) }
        }
    };
    ($this:ident => $inner:expr; copies) => {
        #[inline]
        unsafe fn copy_host_to_device(
            &$this,
            dst: $crate::address::DevicePtr,
            src: *const u8,
            size: usize,
            index: $crate::device::DeviceIndex,
        ) -> $crate::error::Result<()> {
            // SAFETY: the caller's promises are the same; a block of this allocator
            // lies in one of the allocator inside.
            unsafe { $inner.copy_host_to_device(dst, src, size, index) }
        }

        #[inline]
        unsafe fn copy_device_to_host(
            &$this,
            dst: *mut u8,
            src: $crate::address::DevicePtr,
            size: usize,
            index: $crate::device::DeviceIndex,
        ) -> $crate::error::Result<()> {
            // SAFETY: as for the copy to the device.
            unsafe { $inner.copy_device_to_host(dst, src, size, index) }
        }

        #[inline]
        unsafe fn copy_device_to_device(
            &$this,
            dst: $crate::address::DevicePtr,
            dst_index: $crate::device::DeviceIndex,
            src: $crate::address::DevicePtr,
            src_index: $crate::device::DeviceIndex,
            size: usize,
        ) -> $crate::error::Result<()> {
            // SAFETY: as for the copy to the device, on both sides.
            unsafe { $inner.copy_device_to_device(dst, dst_index, src, src_index, size) }
        }

        #[inline]
        unsafe fn fill(
            &$this,
            dst: $crate::address::DevicePtr,
            byte: u8,
            size: usize,
            index: $crate::device::DeviceIndex,
        ) -> $crate::error::Result<()> {
            // SAFETY: as for the copy to the device.
            unsafe { $inner.fill(dst, byte, size, index) }
        }
    };
    ($this:ident => $inner:expr; memory_info) => {
        #[inline]
        fn memory_info(
            &$this,
            index: $crate::device::DeviceIndex,
        ) -> $crate::error::Result<Option<$crate::allocator::MemoryInfo>> {
            $crate::allocator::below::memory_info(&$inner, index)
        }
    };
    ($this:ident => $inner:expr; synchronize) => {
        #[inline]
        fn synchronize(&$this, index: $crate::device::DeviceIndex) -> $crate::error::Result<()> {
            $crate::allocator::below::synchronize(&$inner, index)
        }
    };
    ($this:ident => $inner:expr; trim) => {
        #[inline]
        fn trim(&$this, index: $crate::device::DeviceIndex) -> $crate::error::Result<usize> {
            $crate::allocator::below::trim(&$inner, index)
        }
    };
}

pub(crate) use {forward, forward_group};
