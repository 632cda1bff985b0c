//! The peers, each over the device or over a region of it.

pub(crate) mod buddy;
pub(crate) mod cubecl;
pub(crate) mod gpu_alloc;
pub(crate) mod gpu_allocator;
pub(crate) mod nothing;
pub(crate) mod offset_allocator;
pub(crate) mod range_alloc;
pub(crate) mod vk_mem;
pub(crate) mod vulkano;
pub(crate) mod xalloc;
