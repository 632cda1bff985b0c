//! What these tests share: a library that hands out tensors of its own.

#![expect(unsafe_code, reason = "plays the other side of the interface")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device_memory::dlpack::{ExportedTensor, ImportedTensor};
use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocatorRegistry, DeviceType, Error, ErrorKind, HostAllocator, Result};
use dlpack_ffi::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPackVersion, DLTensor,
};

/// A tensor of another library, and how often its deleter was called.
pub(crate) struct Foreign {
    pub(crate) tensor: DLManagedTensorVersioned,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Option<Vec<i64>>,
    pub(crate) data: Vec<u8>,
    pub(crate) deleted: Arc<AtomicUsize>,
}

impl Foreign {
    /// Six floats of 2 rows in row-major order, on the host.
    pub(crate) fn new() -> Box<Self> {
        let mut foreign = Box::new(Self {
            tensor: DLManagedTensorVersioned {
                version: DLPackVersion { major: 1, minor: 0 },
                manager_ctx: ptr::null_mut(),
                deleter: Some(delete),
                flags: 0,
                dl_tensor: DLTensor {
                    data: ptr::null_mut(),
                    device: DLDevice {
                        device_type: DLDeviceType::kDLCPU,
                        device_id: 0,
                    },
                    ndim: 2,
                    dtype: DLDataType {
                        code: 2,
                        bits: 32,
                        lanes: 1,
                    },
                    shape: ptr::null_mut(),
                    strides: ptr::null_mut(),
                    byte_offset: 0,
                },
            },
            shape: vec![2, 3],
            strides: Some(vec![3, 1]),
            data: (0..24).collect(),
            deleted: Arc::default(),
        });
        foreign.tensor.dl_tensor.data = foreign.data.as_mut_ptr().cast();
        foreign
    }

    /// The tensor as it is handed out, and the count.
    pub(crate) fn into_raw(self: Box<Self>) -> (NonNull<c_void>, Arc<AtomicUsize>) {
        let deleted = Arc::clone(&self.deleted);
        let raw = Box::into_raw(self);
        // SAFETY: the box was just leaked, and nothing else refers to it.
        let foreign = unsafe { &mut *raw };
        foreign.tensor.manager_ctx = raw.cast();
        if !foreign.shape.is_empty() {
            foreign.tensor.dl_tensor.shape = foreign.shape.as_mut_ptr();
        }
        if let Some(strides) = &mut foreign.strides {
            foreign.tensor.dl_tensor.strides = strides.as_mut_ptr();
        }
        let tensor = NonNull::from(&mut foreign.tensor);
        (tensor.cast(), deleted)
    }

    /// Imports it, and checks that the deleter was called if and only if that
    /// failed.
    pub(crate) fn import(self: Box<Self>) -> (Result<ImportedTensor>, Arc<AtomicUsize>) {
        let (raw, deleted) = self.into_raw();
        let registry = DeviceAllocatorRegistry::new();
        registry.register(&HostAllocator).unwrap();

        // SAFETY: the tensor is as it says, or is refused.
        let imported = unsafe { ImportedTensor::from_raw(raw, &registry) };

        let expected = usize::from(imported.is_err());
        assert_eq!(deleted.load(Ordering::Relaxed), expected);
        (imported, deleted)
    }

    /// Why it can not be imported.
    #[track_caller]
    pub(crate) fn refusal(self: Box<Self>) -> Error {
        self.import().0.map(drop).unwrap_err()
    }
}

pub(crate) unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the tensor is live.
    let context = unsafe { (*tensor).manager_ctx };
    // SAFETY: the context is the leaked box, and this is called once.
    let foreign = unsafe { Box::from_raw(context.cast::<Foreign>()) };
    let before = foreign.deleted.fetch_add(1, Ordering::Relaxed);
    assert_eq!(before, 0, "called twice");
}

/// What another library sees of an export.
pub(crate) fn seen(exported: ExportedTensor) -> (DLManagedTensorVersioned, Taken) {
    let raw = exported.into_raw();
    // SAFETY: the tensor is live until it is dropped by `Taken`.
    let tensor = unsafe { *raw.cast::<DLManagedTensorVersioned>().as_ptr() };
    (tensor, Taken(raw))
}

/// A tensor that another library took, and deletes in the end.
pub(crate) struct Taken(pub(crate) NonNull<c_void>);

// SAFETY: a library may take a tensor to any thread.
unsafe impl Send for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        let tensor = self.0.cast::<DLManagedTensorVersioned>().as_ptr();
        // SAFETY: the tensor is live.
        let deleter = unsafe { (*tensor).deleter }.unwrap();
        // SAFETY: this is called once.
        unsafe { deleter(tensor) };
    }
}

/// The numbers behind a pointer.
pub(crate) fn numbers(from: *const i64, len: i32) -> Vec<i64> {
    if from.is_null() {
        return Vec::new();
    }
    let len = usize::try_from(len).unwrap();
    // SAFETY: the tensor that they are of is live.
    unsafe { std::slice::from_raw_parts(from, len) }.to_vec()
}

/// A fake device and a registry in which it serves.
pub(crate) fn rig() -> (FakeDevice, DeviceAllocatorRegistry) {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    (fake, registry)
}

/// The reason of an invalid tensor.
#[track_caller]
pub(crate) fn reason(error: Error) -> String {
    match error.into_kind() {
        ErrorKind::InvalidTensor { reason } => reason,
        other => panic!("{other}"),
    }
}
