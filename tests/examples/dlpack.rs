//! The C library of tensors, loaded as Python loads it.

#![expect(unsafe_code, reason = "calls functions of a library")]

use std::ffi::c_void;
use std::ptr::NonNull;

use device_memory::dlpack::{ExportedTensor, ImportedTensor};
use device_memory::{Device, DeviceAllocatorRegistry, DeviceTensor, ScalarType, TensorSpec};
use libloading::{Library, library_filename};

use crate::examples;

struct Functions(Library);

impl Functions {
    fn load() -> Self {
        let path = examples().join(library_filename("dlpack_library"));
        // SAFETY: nothing runs when it is loaded.
        Self(unsafe { Library::new(path) }.unwrap())
    }

    fn export(&self, name: &str) -> ImportedTensor {
        // SAFETY: both functions that export are of this type.
        let export = unsafe { self.0.get::<extern "C" fn() -> *mut c_void>(name) }.unwrap();
        let tensor = NonNull::new(export()).unwrap();
        // SAFETY: the library has just exported it, and nobody else has taken it.
        unsafe { ImportedTensor::from_raw(tensor, DeviceAllocatorRegistry::global()) }.unwrap()
    }

    fn alive(&self) -> usize {
        // SAFETY: the function is of this type.
        let alive = unsafe { self.0.get::<extern "C" fn() -> usize>("dm_alive") }.unwrap();
        alive()
    }

    /// Gives a tensor of these bytes, and what it says of it.
    fn sum(&self, bytes: &[u8]) -> i64 {
        let spec = TensorSpec::contiguous(ScalarType::Byte, &[bytes.len()], Device::CPU).unwrap();
        let tensor = DeviceTensor::from_host(spec, bytes).unwrap();
        let raw = ExportedTensor::from_tensor(tensor).unwrap().into_raw();
        type Import = unsafe extern "C" fn(*mut c_void) -> i64;
        // SAFETY: the function is of this type.
        let import = unsafe { self.0.get::<Import>("dm_import") }.unwrap();
        // SAFETY: this is a versioned tensor in host memory.
        let sum = unsafe { import(raw.as_ptr()) };
        // SAFETY: the function is of this type.
        let release = unsafe { self.0.get::<extern "C" fn()>("dm_release") }.unwrap();
        release();
        sum
    }
}

#[test]
fn nested_cargo_a_library_of_c_gives_tensors_and_takes_them() {
    let library = Functions::load();
    let floats = [0_f32, 3.0, 1.0, 4.0, 2.0, 5.0];
    let bytes = floats.map(f32::to_le_bytes).concat();

    for (name, read_only) in [("dm_export", false), ("dm_export_read_only", true)] {
        let tensor = library.export(name);

        assert_eq!(library.alive(), 1, "{name}");
        assert_eq!(tensor.is_read_only(), read_only, "{name}");
        assert_eq!(tensor.spec().sizes(), [2, 3], "{name}");
        assert_eq!(tensor.spec().dim_order(), [1, 0], "{name}");
        assert_eq!(tensor.view().unwrap().to_vec().unwrap(), bytes, "{name}");
        drop(tensor);
        assert_eq!(library.alive(), 0, "{name}");
    }
    assert_eq!(library.sum(&[1, 2, 250]), 253);
}
