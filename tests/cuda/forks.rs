//! Children of a process with live buffers, on the fake driver, a simulation.

#![expect(unsafe_code, reason = "fork and what belongs to it")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::{DeviceAllocator, DeviceMemoryBuffer, DeviceType, free_failure_count};
use fakecuda::FakeCuda;

use crate::{alone, filled, layout};

/// Runs `child` in a fork of this process, and checks that it ends well.
fn in_fork(child: impl FnOnce()) {
    // SAFETY: the process has one thread, so the child may go on as it likes.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(child));
        // SAFETY: this ends the child at once, which owns nothing that matters.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for the call, and `pid` is a child of ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
}

/// Checks that the driver was not called in this child.
fn assert_untouched(fake: FakeCuda, calls: u64) {
    assert_eq!(fake.total_calls(), calls);
    assert_eq!(fake.violations(), Vec::<String>::new());
}

// https://github.com/pytorch/pytorch/issues/55643
// https://github.com/vllm-project/vllm/issues/32611
#[test]
fn what_a_child_inherits_is_inert_and_the_parent_goes_on() {
    alone(
        "forks::what_a_child_inherits_is_inert_and_the_parent_goes_on",
        || {
            let fake = FakeCuda::install().unwrap();
            let allocator = CudaAllocator::open().unwrap();
            let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
            let handle = allocator.on_stream(&stream).unwrap();
            let types = [
                DeviceType::Cuda,
                DeviceType::CudaHost,
                DeviceType::CudaManaged,
            ];
            let mut all = Vec::from(
                types.map(|kind| DeviceMemoryBuffer::from_host(b"kept", kind, 0).unwrap()),
            );
            all.extend([filled(&allocator), filled(&handle)]);
            CudaAllocator::record_use(all[3].as_span(), &stream).unwrap();
            let (calls, live) = (fake.total_calls(), fake.live());
            // The streams are the crate's to keep, in parent and child.
            drop(stream);
            let mut owned = Some((all, allocator, handle));

            in_fork(|| {
                let (mut all, allocator, handle) = owned.take().unwrap();
                for buffer in &mut all {
                    assert!(buffer.to_vec().unwrap_err().is_forked_process());
                    assert!(buffer.fill(1).unwrap_err().is_forked_process());
                    assert!(buffer.try_clone().unwrap_err().is_forked_process());
                }
                for kind in types {
                    let error = DeviceMemoryBuffer::create(8, kind, 0).unwrap_err();
                    assert!(error.is_forked_process(), "{error:?}");
                }
                for allocator in [&allocator, &handle] {
                    let outcomes = [
                        allocator.allocate(layout(8), 0).map(drop),
                        allocator.memory_info(0).map(drop),
                        allocator.synchronize(0),
                        allocator.trim(0).map(drop),
                    ];
                    for outcome in outcomes {
                        assert!(outcome.unwrap_err().is_forked_process());
                    }
                }
                assert!(all.pop().unwrap().free().is_err());
                drop((all, allocator, handle));
                assert_eq!(free_failure_count(), 0);
                assert_untouched(fake, calls);
            });

            assert_eq!(fake.live(), live);
            let (all, allocator, handle) = owned.unwrap();
            for buffer in &all {
                assert_eq!(buffer.to_vec().unwrap(), b"kept");
            }
            drop((all, allocator, handle));
            let left = fake.live();
            assert_eq!((left.device_blocks(), left.pinned, left.managed), (0, 0, 0));
            assert_eq!(fake.violations(), Vec::<String>::new());
        },
    );
}

#[test]
fn a_child_that_opens_anew_gets_an_error_and_no_panic() {
    alone(
        "forks::a_child_that_opens_anew_gets_an_error_and_no_panic",
        || {
            let fake = FakeCuda::install().unwrap();
            let buffer = filled(&CudaAllocator::open().unwrap());

            in_fork(|| {
                for error in [
                    CudaAllocator::open().map(drop).unwrap_err(),
                    CudaHostAllocator::open().map(drop).unwrap_err(),
                    CudaManagedAllocator::open().map(drop).unwrap_err(),
                ] {
                    assert!(!error.to_string().is_empty());
                }
            });

            assert_eq!(buffer.to_vec().unwrap(), b"kept");
            drop(buffer);
            assert_eq!(fake.live().device_blocks(), 0);
        },
    );
}
