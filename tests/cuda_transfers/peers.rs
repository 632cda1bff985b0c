//! Copies between two devices that end with a scope.

use std::sync::Arc;

use device_memory::backend::cuda::cudarc::driver::{CudaStream, result};
use device_memory::backend::cuda::transfer_scope;
use device_memory::{DeviceLayout, DeviceMemoryBuffer, DeviceType};
use fakecuda::Schedule;

use crate::support::Rig;

#[test]
fn copies_between_devices_arrive_in_the_order_of_a_stream_of_either() {
    let rig = Rig::new();
    let streams = [Arc::clone(&rig.stream), rig.other_stream()];
    for peers in [true, false] {
        for (stream, at) in streams.iter().zip([0, 1]) {
            rig.fake.set_peer_access(peers);
            rig.fake.set_schedule(Schedule::Delayed);
            let source = rig.pinned(&[7; 4]);
            let mut own = rig.device_at(4, at);
            let [mut other, mut back] = [1 - at, at].map(|index| rig.device_at(4, index));

            for step in 0..3 {
                transfer_scope(stream, |scope| match step {
                    0 => scope.copy_to_device(own.as_span_mut(), source.as_slice()?),
                    1 => scope.copy_device_to_device(other.as_span_mut(), own.as_span()),
                    _ => scope.copy_device_to_device(back.as_span_mut(), other.as_span()),
                })
                .unwrap();
            }

            assert_eq!([rig.peek(&other), rig.peek(&back)], [[7; 4]; 2]);
            rig.check();
        }
    }
}

#[test]
fn a_copy_between_devices_goes_on_while_the_scope_does_something_else() {
    let rig = Rig::new();
    rig.fake.set_schedule(Schedule::Delayed);
    let mut source = rig.device_at(4, 1);
    source.fill(7).unwrap();
    let mut target = rig.device(4);
    target.fill(1).unwrap();
    let at = target.ptr().addr() as u64;

    let seen = transfer_scope(&rig.stream, |scope| {
        scope.copy_device_to_device(target.as_span_mut(), source.as_span())?;
        Ok(rig.fake.read(at, 4))
    })
    .unwrap();

    assert_eq!(seen, Some(vec![1; 4]));
    assert_eq!(rig.fake.count("cuMemcpyPeerAsync"), 1);
    assert_eq!(rig.peek(&target), [7; 4]);
    rig.check();
}

#[test]
fn memory_of_a_stream_of_another_device_is_waited_for() {
    let rig = Rig::new();
    let other = rig.other_stream();
    rig.fake.set_schedule(Schedule::Delayed);
    let handle = Arc::new(rig.cuda.on_stream(&other).unwrap());
    let layout = DeviceLayout::from_size(4).unwrap();
    let mut source = DeviceMemoryBuffer::create_with(handle, layout, 1).unwrap();
    enqueue_fill(&other, &mut source, 7);
    let mut target = rig.device(4);

    transfer_scope(&rig.stream, |scope| {
        scope.copy_device_to_device(target.as_span_mut(), source.as_span())
    })
    .unwrap();

    assert_eq!(rig.peek(&target), [7; 4]);
    drop(source);
    rig.check();
}

/// Gives a stream work that writes to a buffer, and does not wait for it.
#[expect(unsafe_code, reason = "calls the driver")]
fn enqueue_fill(stream: &Arc<CudaStream>, buffer: &mut DeviceMemoryBuffer, byte: u8) {
    let (ptr, len) = (buffer.ptr().addr() as u64, buffer.size());
    stream.context().bind_to_thread().unwrap();
    // SAFETY: the driver is a simulation, which checks what it is told.
    unsafe { result::memset_d8_async(ptr, byte, len, stream.cu_stream()) }.unwrap();
}

#[test]
fn copies_between_devices_of_which_none_is_the_streams_are_refused() {
    let rig = Rig::new();
    let [mut target, source] = [1; 2].map(|index| rig.device_at(4, index));
    let cpu = DeviceMemoryBuffer::create(4, DeviceType::Cpu, 0).unwrap();
    let mut own = rig.device(4);
    rig.fake.clear_calls();

    let errors = transfer_scope(&rig.stream, |scope| {
        Ok([
            scope.copy_device_to_device(target.as_span_mut(), source.as_span()),
            scope.copy_device_to_device(own.as_span_mut(), cpu.as_span()),
        ]
        .map(|result| result.unwrap_err().to_string()))
    })
    .unwrap();

    assert_eq!(errors[0], "device mismatch: expected cuda:0, found cuda:1");
    assert!(errors[1].contains("cpu:0"), "{}", errors[1]);
    assert_eq!(rig.fake.total_calls(), 0);
}

#[test]
fn every_call_of_a_copy_between_devices_may_fail_and_nothing_is_lost() {
    let rig = Rig::new();
    let mut source = rig.device_at(4, 1);
    source.fill(1).unwrap();
    let mut target = rig.device(4);

    let calls = rig.fail_each_call(|| {
        let copied = transfer_scope(&rig.stream, |scope| {
            scope.copy_device_to_device(target.as_span_mut(), source.as_span())
        });
        if copied.is_ok() {
            assert_eq!(rig.peek(&target), [1; 4]);
        }
    });

    assert!(calls > 5, "{calls}");
}
