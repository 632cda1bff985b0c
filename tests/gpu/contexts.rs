//! The context that is current on a thread is the caller's.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ptr;
use std::thread;

use device_memory::backend::cuda::cudarc::driver::sys::{CUcontext, CUdevice};
use device_memory::backend::cuda::cudarc::driver::{CudaContext, result};
use device_memory::backend::cuda::{
    CudaAllocator, CudaHostAllocator, CudaManagedAllocator, lend, transfer_scope, upload,
};
use device_memory::{DeviceAllocator, DeviceLayout};
use libloading::Library;

use crate::support::{Gpu, aligned, empty, filled, skip, stream};

type Create = unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> u32;
type Destroy = unsafe extern "C" fn(CUcontext) -> u32;

/// A context that is no device's primary one.
struct Own {
    context: CUcontext,
    driver: Library,
}

impl Own {
    /// Makes one on device 0. The bindings have this function only for some
    /// versions of the driver; so it is looked for.
    fn create() -> Option<Self> {
        let names = ["libcuda.so", "libcuda.so.1", "nvcuda.dll"];
        let driver = names.iter().find_map(|name| {
            // SAFETY: the driver is loaded already.
            unsafe { Library::new(*name) }.ok()
        })?;
        let mut context = ptr::null_mut();
        // SAFETY: this is the type of the function.
        let create = unsafe { driver.get::<Create>(b"cuCtxCreate_v2\0") }.ok()?;
        let device = result::device::get(0).unwrap();
        // SAFETY: the variable is ours, and the device is one.
        let code = unsafe { create(&mut context, 0, device) };
        (code == 0).then_some(Self { context, driver })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: this is the type of the function.
        let Ok(destroy) = (unsafe { self.driver.get::<Destroy>(b"cuCtxDestroy_v2\0") }) else {
            return;
        };
        // SAFETY: the context is ours, and not used any more.
        unsafe { destroy(self.context) };
    }
}

/// The current context of this thread.
fn current() -> CUcontext {
    result::ctx::get_current()
        .unwrap()
        .unwrap_or(ptr::null_mut())
}

/// Calls everything, on one device, and checks after each that the current
/// context is still `expected`.
fn use_everything(allocator: &CudaAllocator, expected: CUcontext, what: &str) {
    let check = |call: &str| assert_eq!(current(), expected, "{call} with {what} current");
    // What is cudarc's changes the current context; so it is made elsewhere.
    let made = thread::spawn(|| [stream(0), stream(0)]).join().unwrap();
    let [stream, other] = &made;
    check("nothing");
    let on_stream = allocator.on_stream(stream).unwrap();
    check("on_stream");
    for allocator in [allocator, &on_stream] {
        let mut buffer = empty(allocator, 4096, 0);
        check("allocate");
        buffer.copy_from_host(&[1; 4096]).unwrap();
        check("copy_from_host");
        let clone = buffer.try_clone().unwrap();
        assert_eq!(clone.to_vec().unwrap(), [1; 4096]);
        check("try_clone and to_vec");
        buffer.fill(2).unwrap();
        check("fill");
        CudaAllocator::record_use(buffer.as_span(), other).unwrap();
        check("record_use");
        drop(buffer);
        check("a drop");
        clone.free().unwrap();
        check("free");
        allocator.memory_info(0).unwrap();
        allocator.synchronize(0).unwrap();
        allocator.trim(0).unwrap();
        check("memory_info, synchronize and trim");
        let huge = DeviceLayout::new(1 << 50, 1 << 20).unwrap();
        allocator.allocate(huge, 0).unwrap_err();
        check("an allocation that fails");
    }
    let mut device = filled(allocator, &[3; 64], 0);
    let host = empty(&CudaHostAllocator::open().unwrap(), 64, 0);
    check("page-locked memory");
    if let Ok(managed) = CudaManagedAllocator::open() {
        drop(empty(&managed, 64, 0));
        check("managed memory");
    }
    let layout = DeviceLayout::new(64, 1 << 16).unwrap();
    drop(aligned(allocator, layout, 0));
    check("an aligned block");
    transfer_scope(stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), host.as_slice()?)
    })
    .unwrap();
    check("transfer_scope");
    let (host, device) = upload(stream, host, device).unwrap().wait().unwrap();
    check("upload");
    lend::<u8, _>(device.as_span(), stream, |slice| slice.len()).unwrap();
    check("lend");
    drop((host, device, on_stream));
    check("the last drops");
    thread::spawn(move || drop(made)).join().unwrap();
}

#[test]
fn no_call_changes_the_current_context() {
    let Some(gpu) = Gpu::open() else { return };
    // A thread of its own, which has no context at first.
    let outcome = thread::scope(|scope| {
        scope
            .spawn(|| {
                assert!(current().is_null());
                use_everything(&gpu.allocator, ptr::null_mut(), "none");

                for index in 0..gpu.count().min(2) {
                    let primary = CudaContext::new(index).unwrap();
                    let what = format!("the primary context of device {index}");
                    use_everything(&gpu.allocator, primary.cu_ctx(), &what);
                }

                let Some(own) = Own::create() else {
                    return skip("no context can be made that is not primary");
                };
                use_everything(&gpu.allocator, own.context, "another context");
            })
            .join()
    });
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
