//! Copies that end with a scope.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use device_memory::backend::cuda::cudarc::driver::CudaContext;
use device_memory::backend::cuda::cudarc::driver::sys::CUstreamCaptureMode;
use device_memory::backend::cuda::{TransferScope, transfer_scope};
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType, ErrorKind, Operation, Result};
use fakecuda::Schedule;

use crate::support::{FAULT, Rig};

/// The number that `cuStreamSynchronize` and the like return while capturing.
const CAPTURING: i32 = 900;

#[test]
fn the_source_may_be_reused_after_the_scope_and_not_before() {
    // chelsea0x3b/cudarc#314 and #340: the source was freed before the copy.
    for schedule in Schedule::all(4) {
        let rig = Rig::new();
        rig.fake.set_schedule(schedule);
        let mut source = rig.pinned(&[1; 64]);
        let mut device = rig.device(64);

        transfer_scope(&rig.stream, |scope| {
            scope.copy_to_device(device.as_span_mut(), source.as_slice()?)
        })
        .unwrap();
        source.as_slice_mut().unwrap().fill(9);
        drop(source);

        assert_eq!(device.to_vec().unwrap(), [1; 64], "{schedule:?}");
        rig.check();
    }
}

#[test]
fn the_scope_goes_on_while_the_device_copies() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let source = rig.pinned(&[1; 4]);
    let mut device = rig.device(4);
    let ptr = device.ptr().addr() as u64;

    let inside = transfer_scope(&rig.stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), source.as_slice()?)?;
        Ok(rig.fake.read(ptr, 4))
    })
    .unwrap();

    assert_eq!(inside, Some(vec![0xCD; 4]));
    assert_eq!(rig.peek(&device), [1; 4]);
}

#[test]
fn copies_of_one_scope_are_in_order() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let source = [1, 2, 3, 4];
    let (mut a, mut b) = (rig.device(4), rig.device(4));
    let mut back = [0; 4];

    transfer_scope(&rig.stream, |scope| {
        let (front, rest) = a.as_span_mut().into_split_at(2)?;
        scope.copy_to_device(front, &source[..2])?;
        scope.copy_to_device(rest, &source[2..])
    })
    .unwrap();
    transfer_scope(&rig.stream, |scope| {
        scope.copy_device_to_device(b.as_span_mut(), a.as_span())
    })
    .unwrap();
    transfer_scope(&rig.stream, |scope| {
        scope.copy_to_host(&mut back, b.as_span())
    })
    .unwrap();

    assert_eq!(back, source);
    rig.check();
}

#[test]
fn a_body_that_fails_is_waited_for() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let source = rig.pinned(&[1; 4]);
    let mut device = rig.device(4);

    let error = transfer_scope(&rig.stream, |scope| -> Result<()> {
        scope.copy_to_device(device.as_span_mut(), source.as_slice()?)?;
        Err(ErrorKind::NoDevice {
            device_type: DeviceType::Custom(1),
        }
        .into())
    })
    .unwrap_err();

    assert!(matches!(error.kind(), ErrorKind::NoDevice { .. }));
    assert_eq!(rig.peek(&device), [1; 4]);
    rig.check();
}

#[test]
fn a_body_that_panics_is_waited_for() {
    let rig = Rig::new();
    let before = rig.alive();
    rig.fake.set_schedule(Schedule::Delayed);
    let source = rig.pinned(&[1; 4]);
    let mut device = rig.device(4);

    let payload = catch_unwind(AssertUnwindSafe(|| {
        transfer_scope(&rig.stream, |scope| -> Result<()> {
            scope.copy_to_device(device.as_span_mut(), source.as_slice()?)?;
            panic!("user")
        })
    }))
    .unwrap_err();

    assert_eq!(payload.downcast_ref(), Some(&"user"));
    assert_eq!(rig.peek(&device), [1; 4]);
    drop((source, device));
    assert_eq!(rig.alive(), before);
    rig.check();
}

#[test]
fn lengths_and_devices_are_checked_before_anything_is_copied() {
    let rig = Rig::new();
    let mut device = rig.device(4);
    let mut other = rig.device_at(4, 1);
    let mut cpu = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
    rig.fake.clear_calls();

    let errors = transfer_scope(&rig.stream, |scope| {
        Ok([
            scope.copy_to_device(device.as_span_mut(), &[1; 3]),
            scope.copy_to_device(other.as_span_mut(), &[1; 4]),
            scope.copy_to_device(cpu.as_span_mut(), &[1; 4]),
        ]
        .map(|result| result.unwrap_err().to_string()))
    })
    .unwrap();

    assert_eq!(
        errors,
        [
            "length mismatch on cuda:0: expected 4 bytes, found 3",
            "device mismatch: expected cuda:0, found cuda:1",
            "device mismatch: expected cuda:0, found cpu:0",
        ]
    );
    assert_eq!(rig.fake.total_calls(), 0);
}

#[cfg(feature = "testing")]
#[test]
fn addresses_that_are_none_of_the_drivers_are_refused() {
    use device_memory::testing::{FakeDevice, FaultInjector};

    let rig = Rig::new();
    let layout = DeviceLayout::from_size(4).unwrap();
    let fake = Arc::new(FakeDevice::new(DeviceType::Cuda, 1));
    let mut simulated = DeviceMemoryBuffer::create_with(fake, layout, 0).unwrap();
    let wrapped = Arc::new(FaultInjector::new((*rig.cuda).clone()));
    let mut unknown = DeviceMemoryBuffer::create_with(wrapped, layout, 0).unwrap();

    for buffer in [&mut simulated, &mut unknown] {
        let error = transfer_scope(&rig.stream, |scope| {
            scope.copy_to_device(buffer.as_span_mut(), &[1; 4])
        })
        .unwrap_err();

        assert!(error.is_not_supported(), "{error}");
    }
}

#[test]
fn copies_of_nothing_do_nothing() {
    let rig = Rig::new();
    let mut device = rig.device(0);
    rig.fake.clear_calls();

    transfer_scope(&rig.stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), &[])
    })
    .unwrap();

    assert_eq!(rig.fake.total_calls(), 0);
}

#[test]
fn a_stream_that_records_a_graph_is_refused_and_not_spoilt() {
    let rig = Rig::new();
    let source = rig.pinned(&[1; 4]);
    let mut device = rig.device(4);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    rig.stream.begin_capture(mode).unwrap();

    let error = transfer_scope(&rig.stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), source.as_slice()?)
    })
    .unwrap_err();

    let (on, operation) = (device.device(), Operation::CopyHostToDevice);
    assert!(matches!(
        error.kind(),
        ErrorKind::Capturing { device, operation: found } if *device == on && *found == operation
    ));
    end_capture(&rig);
    rig.check();
}

#[test]
fn a_capture_that_begins_in_the_scope_is_no_way_around_the_wait() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let source = rig.pinned(&[1; 4]);
    let mut device = rig.device(4);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

    transfer_scope(&rig.stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), source.as_slice()?)?;
        rig.stream.begin_capture(mode).unwrap();
        Ok(())
    })
    .unwrap();

    assert_eq!(rig.peek(&device), [1; 4]);
    end_capture(&rig);
    rig.check();
}

/// Ends a capture that must not have been spoilt.
#[expect(
    unsafe_code,
    reason = "cudarc's safe call would make an executable graph"
)]
fn end_capture(rig: &Rig) {
    use device_memory::backend::cuda::cudarc::driver::result;

    // SAFETY: the stream is alive.
    let graph = unsafe { result::stream::end_capture(rig.stream.cu_stream()) };
    let graph = graph.map_err(|error| error.0 as i32).unwrap();
    // SAFETY: the graph was just made.
    unsafe { result::graph::destroy(graph) }.unwrap();
}

#[test]
fn a_wait_that_fails_is_the_error_and_another_way_is_found() {
    for call in ["cuStreamSynchronize", "cuStreamIsCapturing"] {
        let rig = Rig::new();
        rig.fake.set_schedule(Schedule::Delayed);
        let mut source = rig.pinned(&[1; 4]);
        let mut device = rig.device(4);

        let result = transfer_scope(&rig.stream, |scope| {
            scope.copy_to_device(device.as_span_mut(), source.as_slice()?)?;
            rig.fake.fail(call, 1, CAPTURING);
            Ok(())
        });
        source.as_slice_mut().unwrap().fill(9);

        let error = result.unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::Driver {
                operation: Operation::Synchronize,
                code: 900,
                ..
            }
        ));
        assert_eq!(device.to_vec().unwrap(), [1; 4]);
        rig.check();
    }
}

#[test]
fn a_mark_that_was_not_set_is_not_taken_for_the_end() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let source = rig.pinned(&[1; 4]);
    let mut device = rig.device(4);
    rig.fake.fail("cuEventRecord", 1, FAULT);
    rig.fake.fail("cuStreamSynchronize", 0, FAULT);

    let result = transfer_scope(&rig.stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), source.as_slice()?)
    });

    assert!(result.is_err());
    assert_eq!(rig.fake.live().pending, 0, "the context was waited for");
    rig.check();
}

#[test]
fn every_call_may_fail_and_nothing_is_lost() {
    let rig = Rig::new();
    let mut source = rig.pinned(&[1; 4]);
    let mut device = rig.device(4);
    let ptr = device.ptr().addr() as u64;

    let calls = rig.fail_each_call(|| {
        source.as_slice_mut().unwrap().fill(1);
        let mut back = [0; 4];
        let result = transfer_scope(&rig.stream, |scope| {
            scope.copy_to_device(device.as_span_mut(), source.as_slice()?)
        })
        .and_then(|()| {
            transfer_scope(&rig.stream, |scope| {
                scope.copy_to_host(&mut back, device.as_span())
            })
        });
        source.as_slice_mut().unwrap().fill(9);
        rig.fake.run_schedule(fakecuda::Run::All);

        let bytes = rig.fake.read(ptr, 4).unwrap();
        assert!(!bytes.contains(&9), "copied after the scope: {bytes:?}");
        if result.is_ok() {
            assert_eq!((bytes.as_slice(), back), ([1; 4].as_slice(), [1; 4]));
        }
    });

    assert!(calls > 10, "{calls}");
}

#[test]
fn memory_of_another_streams_order_is_waited_for() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let own = rig.context.new_stream().unwrap();
    let handle = Arc::new(rig.cuda.on_stream(&own).unwrap());
    let layout = DeviceLayout::from_size(4).unwrap();
    let mut device = DeviceMemoryBuffer::create_with(handle, layout, 0).unwrap();

    transfer_scope(&rig.stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), &[1; 4])
    })
    .unwrap();

    assert_eq!(rig.peek(&device), [1; 4]);
    drop(device);
    rig.check();
}

#[test]
fn the_callers_context_stays_current() {
    let rig = Rig::new();
    let _other = CudaContext::new(1).unwrap();
    let current = rig.fake.current_context();
    let mut device = rig.device(4);

    transfer_scope(&rig.stream, |scope: &TransferScope<'_>| {
        scope.copy_to_device(device.as_span_mut(), &[1; 4])
    })
    .unwrap();

    assert_eq!(rig.fake.current_context(), current);
    assert_eq!(current.unwrap().1, Some(1));
    rig.check();
}
