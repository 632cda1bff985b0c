//! `cubecl-server`: the memory management of CubeCL's runtimes, in its default
//! configuration, over a storage whose memory is that of the fake device.
//!
//! What a runtime does besides is left out: it moves live blocks off pages that
//! are outdated, which blocks with an address can not be.

use std::sync::Arc;

use cubecl_environment::backtrace::BackTrace;
use cubecl_ir::MemoryDeviceProperties;
use cubecl_server::logging::ServerLogger;
use cubecl_server::memory_management::{
    Cleanup, ErrorGraph, ManagedMemoryHandle, MemoryAllocationMode, MemoryConfiguration,
    MemoryManagement, MemoryManagementOptions, PageUpdate,
};
use cubecl_server::server::IoError;
use cubecl_server::storage::{ComputeStorage, StorageHandle, StorageId, StorageUtilization};
use device_memory::testing::FakeDevice;
use rustc_hash::FxHashMap;

use crate::peer::{Peer, Room, Segment, UNIT};

/// Pages of the device, by their number.
struct Pages {
    device: FakeDevice,
    pages: FxHashMap<StorageId, Segment>,
}

impl ComputeStorage for Pages {
    /// An address.
    type Resource = usize;

    fn alignment(&self) -> usize {
        UNIT
    }

    fn get(&mut self, handle: &StorageHandle) -> Result<usize, IoError> {
        match self.pages.get(&handle.id) {
            Some(page) => Ok(page.address() + handle.offset() as usize),
            None => Err(IoError::StorageHandleNotFound {
                reason: "no such page".into(),
                backtrace: BackTrace::capture(),
            }),
        }
    }

    fn alloc(&mut self, size: u64) -> Result<StorageHandle, IoError> {
        let Some(page) = Segment::take(&self.device, size as usize) else {
            return Err(IoError::OutOfMemory {
                size,
                backtrace: BackTrace::capture(),
            });
        };
        let id = StorageId::new();
        self.pages.insert(id, page);
        Ok(StorageHandle::new(
            id,
            StorageUtilization { offset: 0, size },
        ))
    }

    fn dealloc(&mut self, id: StorageId) {
        self.pages.remove(&id);
    }

    fn flush(&mut self) {}

    fn bytes_allocated(&self) -> u64 {
        self.device.live_bytes() as u64
    }
}

pub(crate) struct CubeCl {
    memory: MemoryManagement<Pages>,
    failures: ErrorGraph,
}

impl Peer for CubeCl {
    type Block = ManagedMemoryHandle;
    const NAME: &'static str = "cubecl-server";
    const GROWS: bool = true;

    fn over(room: &Room) -> Self {
        let pages = Pages {
            device: room.device.clone(),
            pages: FxHashMap::default(),
        };
        let bytes = room.bytes as u64;
        // Its CUDA runtime has pages of at most a quarter of the memory.
        let properties = MemoryDeviceProperties::new(bytes / 4, UNIT as u64).with_max_memory(bytes);
        let options = MemoryManagementOptions::new("peer").mode(MemoryAllocationMode::Auto);
        Self {
            memory: MemoryManagement::from_configuration(
                pages,
                &properties,
                MemoryConfiguration::default(),
                Arc::new(ServerLogger::default()),
                options,
            ),
            failures: ErrorGraph::default(),
        }
    }

    /// Its runtimes give up unused pages too before they give up.
    #[inline]
    fn allocate(&mut self, size: usize) -> Option<ManagedMemoryHandle> {
        let (size, failures) = (size as u64, &mut self.failures);
        if let Ok(block) = self.memory.reserve(size, PageUpdate::Allow, failures) {
            return Some(block);
        }
        self.memory.cleanup(Cleanup::Explicit, failures);
        self.memory.reserve(size, PageUpdate::Allow, failures).ok()
    }

    fn address(&mut self, block: &ManagedMemoryHandle) -> usize {
        let binding = block.clone().binding();
        self.memory
            .get_resource(binding, None, None)
            .expect("a block")
    }

    #[inline]
    fn free(&mut self, block: ManagedMemoryHandle) {
        drop(block);
    }
}
