//! Views that are lent as slices of cudarc's.

#![expect(unsafe_code, reason = "a loan without a scope is unsafe to make")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use device_memory::backend::cuda::cudarc::driver::result::DriverError;
use device_memory::backend::cuda::cudarc::driver::sys::CUresult;
use device_memory::backend::cuda::{BorrowedCudaSlice, BorrowedCudaSliceMut, lend, lend_mut};
use device_memory::{DeviceMemoryBuffer, DeviceType, ErrorKind};
use fakecuda::Schedule;

use crate::support::{FAULT, Rig};

#[test]
fn a_lent_slice_is_read_and_not_freed() {
    for schedule in Schedule::all(3) {
        let rig = Rig::new();
        let before = rig.alive();
        rig.fake.set_schedule(schedule);
        let mut buffer = rig.device(8);
        buffer.copy_from_host(&[1, 0, 0, 0, 2, 0, 0, 0]).unwrap();

        let values = lend::<u32, _>(buffer.as_span(), &rig.stream, |slice| {
            assert_eq!(slice.len(), 2);
            rig.stream.clone_dtoh(slice)
        });

        assert_eq!(values.unwrap().unwrap(), [1, 2]);
        assert_eq!(buffer.to_vec().unwrap(), [1, 0, 0, 0, 2, 0, 0, 0]);
        drop(buffer);
        assert_eq!(rig.alive(), before, "{schedule:?}");
        rig.check();
    }
}

#[test]
fn a_part_of_a_buffer_is_lent_and_written() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut buffer = rig.device(16);
    buffer.fill(7).unwrap();

    let part = buffer.as_span_mut().into_subspan(4, 8).unwrap();
    lend_mut::<f32, _>(part, &rig.stream, |slice| {
        assert_eq!(slice.len(), 2);
        rig.stream.memset_zeros(&mut slice.as_view_mut())
    })
    .unwrap()
    .unwrap();

    assert_eq!(
        rig.peek(&buffer),
        [7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7]
    );
    rig.check();
}

#[test]
fn work_on_any_stream_is_done_when_the_loan_ends() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut buffer = rig.device(64);
    buffer.fill(1).unwrap();
    let streams = [(); 3].map(|()| rig.context.new_stream().unwrap());

    let copies = lend::<u8, _>(buffer.as_span(), &rig.stream, |slice| {
        streams
            .each_ref()
            .map(|stream| stream.clone_dtod(slice).unwrap())
    })
    .unwrap();
    drop(buffer);
    rig.check();

    for (stream, copy) in streams.iter().zip(&copies) {
        assert_eq!(stream.clone_dtoh(copy).unwrap(), [1; 64]);
    }
    drop(copies);
    rig.check();
}

#[test]
fn a_body_that_panics_ends_the_loan() {
    let rig = Rig::new();
    let buffer = rig.device(8);
    let before = rig.alive();

    let payload = catch_unwind(AssertUnwindSafe(|| {
        lend::<u8, ()>(buffer.as_span(), &rig.stream, |_| panic!("user"))
    }));

    assert_eq!(payload.unwrap_err().downcast_ref(), Some(&"user"));
    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn what_does_not_fit_the_type_the_stream_or_cuda_is_refused() {
    let rig = Rig::new();
    let (buffer, other) = (rig.device(9), rig.device_at(8, 1));
    let cpu = DeviceMemoryBuffer::create(8, DeviceType::Cpu, 0).unwrap();
    rig.fake.clear_calls();
    let refused = |span| lend::<u32, _>(span, &rig.stream, |_| {}).unwrap_err();

    let length = refused(buffer.as_span());
    let address = refused(buffer.as_span().subspan(1, 8).unwrap());
    let device = refused(other.as_span());
    let host = refused(cpu.as_span());

    assert!(matches!(
        length.kind(),
        ErrorKind::LengthMismatch {
            expected: 8,
            found: 9,
            ..
        }
    ));
    assert!(
        address
            .to_string()
            .contains("is not aligned to 4 bytes, as u32 has to be")
    );
    assert!(matches!(device.kind(), ErrorKind::DeviceMismatch { .. }));
    assert!(matches!(host.kind(), ErrorKind::DeviceMismatch { .. }));
    assert_eq!(rig.fake.total_calls(), 0);
}

#[test]
fn a_guard_gives_events_and_stream_back_and_the_memory_not() {
    let rig = Rig::new();
    let mut buffer = rig.device(8);
    let before = rig.alive();
    let holders = Arc::strong_count(&rig.stream);

    // SAFETY: all work is on one stream, which is waited for.
    let mut guard =
        unsafe { BorrowedCudaSliceMut::<u8>::new(buffer.as_span_mut(), &rig.stream) }.unwrap();
    rig.stream.memset_zeros(&mut guard.as_view_mut()).unwrap();
    drop(guard);
    rig.stream.synchronize().unwrap();

    assert_eq!(rig.alive(), before);
    assert_eq!(Arc::strong_count(&rig.stream), holders);
    assert_eq!(buffer.to_vec().unwrap(), [0; 8]);
    rig.check();
}

#[test]
fn every_call_may_fail_and_nothing_is_lost_or_kept_for_another() {
    let rig = Rig::new();
    let mut buffer = rig.device(8);

    let calls = rig.fail_each_call(|| {
        let read = lend::<u8, _>(buffer.as_span(), &rig.stream, |slice| slice.len());
        let written = lend_mut::<u8, _>(buffer.as_span_mut(), &rig.stream, |slice| slice.len());
        for len in [read, written].into_iter().flatten() {
            assert_eq!(len, 8);
        }
    });

    assert!(calls > 20, "{calls}");
}

#[test]
fn events_that_can_not_be_made_are_an_error_and_no_panic() {
    let rig = Rig::new();
    let buffer = rig.device(8);
    let before = rig.alive();
    let panics = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&panics);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    }));
    rig.fake.fail("cuEventCreate", 0, FAULT);

    let lent = lend::<u8, _>(buffer.as_span(), &rig.stream, |slice| slice.len());

    std::panic::set_hook(hook);
    rig.fake.disarm();
    let error = lent.unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::Driver {
            call: "cuEventCreate",
            code: 999,
            ..
        }
    ));
    assert_eq!(panics.load(Ordering::Relaxed), 0);
    assert_eq!(rig.alive(), before);
}

#[test]
fn a_failure_that_cudarc_keeps_is_neither_ours_nor_lost() {
    let rig = Rig::new();
    let buffer = rig.device(8);
    let kept = DriverError(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    rig.context.record_err::<()>(Err(kept));

    let lent = lend::<u8, _>(buffer.as_span(), &rig.stream, |slice| slice.len());

    assert_eq!(lent.unwrap(), 8);
    assert_eq!(
        rig.context.check_err().map_err(|error| error.0 as i32),
        Err(801)
    );
}

#[test]
fn a_wait_that_fails_is_the_error() {
    let rig = Rig::new();
    let buffer = rig.device(8);

    let error = lend::<u8, _>(buffer.as_span(), &rig.stream, |_| {
        rig.fake.fail("cuCtxSynchronize", 1, FAULT);
    })
    .unwrap_err();

    assert!(matches!(
        error.kind(),
        ErrorKind::Driver {
            call: "cuCtxSynchronize",
            ..
        }
    ));
    rig.check();
}

#[test]
fn memory_of_nothing_is_lent_too() {
    let rig = Rig::new();
    let before = rig.alive();
    let buffer = rig.device(0);

    // SAFETY: there is no memory to keep in order.
    let guard = unsafe { BorrowedCudaSlice::<u64>::new(buffer.as_span(), &rig.stream) }.unwrap();

    assert!(guard.is_empty());
    drop(guard);
    assert_eq!(rig.alive(), before);
}
