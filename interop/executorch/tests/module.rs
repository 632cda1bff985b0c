//! The released runtime allocates the device buffers of programs through a
//! registry of this project, copies through it, and gives everything back.

mod support;

use std::sync::Arc;
use std::thread;

use device_memory::pte::Program;
use device_memory::testing::{Call, FakeDevice, FaultInjector};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceIndex, DeviceType, Operation, PlannedMemory,
};
use interop_executorch::program::on_memory_of_the_runtime;
use interop_executorch::{Bridge, Failure};

use support::{DEVICE_PROGRAMS, Rig, file};

/// The buffers that a plan has on devices, by device.
fn device_buffers(memory: &PlannedMemory) -> Vec<(Device, usize)> {
    let buffers = memory.buffers().iter();
    let mut found: Vec<(Device, usize)> = buffers
        .map(|buffer| (buffer.device(), buffer.size()))
        .filter(|(device, _)| !device.is_cpu())
        .collect();
    found.sort();
    found
}

/// The operation, device and bytes of the calls, without the addresses.
fn summary(calls: &[Call]) -> Vec<(Operation, DeviceIndex, usize)> {
    let calls = calls.iter();
    calls
        .map(|call| (call.operation, call.index, call.size))
        .collect()
}

#[test]
fn the_runtime_asks_for_the_device_buffers_that_planned_memory_has() {
    for name in DEVICE_PROGRAMS.into_iter().chain(["skip_h2d", "skip_d2h"]) {
        let rig = Rig::new();
        let ours = FakeDevice::new(DeviceType::Cuda, 128);
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(ours.clone())).unwrap();
        let bytes = std::fs::read(file(name)).unwrap();
        let plan = Program::parse(&bytes).unwrap().methods()[0].plan().unwrap();
        let memory = PlannedMemory::allocate(&plan, &registry).unwrap();

        on_memory_of_the_runtime(&file(name), false, |session| {
            session.load("forward")?;

            let mut lent = rig.bridge.lent();
            lent.sort();
            assert_eq!(lent, device_buffers(&memory), "{name}");
            assert_eq!(rig.fake.allocations(), ours.allocations(), "{name}");
            assert_eq!(rig.fake.live_bytes(), ours.live_bytes(), "{name}");
            Ok(())
        })
        .unwrap();

        // The runtime asks for the alignment of a pointer, planned memory for 64.
        let aligns = |fake: &FakeDevice| {
            let calls = fake.calls().into_iter();
            calls.filter_map(|call| call.align).collect::<Vec<_>>()
        };
        let allocated = usize::try_from(ours.allocations()).unwrap();
        assert_eq!(aligns(&rig.fake)[..allocated], vec![8; allocated]);
        assert_eq!(aligns(&ours)[..allocated], vec![64; allocated]);
        drop(memory);
        assert_eq!(rig.fake.deallocations(), ours.deallocations(), "{name}");
        rig.assert_clean();
    }
}

#[test]
fn a_run_copies_in_runs_the_delegate_and_copies_out() {
    use Operation::{Allocate, CopyDeviceToHost, CopyHostToDevice, Deallocate};
    let rig = Rig::new();

    let run = on_memory_of_the_runtime(&file("add_cuda1"), false, |session| {
        let inputs = session.inputs("forward", 1)?;
        session.run("forward", &inputs)
    });

    run.unwrap();
    let expected = [
        (Allocate, 1, 48),
        // The program's own copies of its inputs.
        (CopyHostToDevice, 1, 16),
        (CopyHostToDevice, 1, 16),
        // The stand-in fetches both, and puts the sum.
        (CopyDeviceToHost, 1, 16),
        (CopyDeviceToHost, 1, 16),
        (CopyHostToDevice, 1, 16),
        // The program's own copy of its output.
        (CopyDeviceToHost, 1, 16),
        (Deallocate, 1, 48),
    ];
    assert_eq!(summary(&rig.fake.calls()), expected);
    rig.assert_clean();
}

#[test]
fn copies_go_where_the_plan_says() {
    let rig = Rig::new();
    let bytes = std::fs::read(file("add_cuda0")).unwrap();
    let program = Program::parse(&bytes).unwrap();
    let method = program.method("forward").unwrap();
    let on_device = method.planned_tensors();
    let on_device = on_device.filter(|tensor| !tensor.device().is_cpu());
    let mut planned: Vec<usize> = on_device.map(|tensor| tensor.offset()).collect();
    planned.sort_unstable();

    on_memory_of_the_runtime(&file("add_cuda0"), false, |session| {
        let inputs = session.inputs("forward", 1)?;
        session.run("forward", &inputs)?;
        Ok(())
    })
    .unwrap();

    let calls = rig.fake.calls();
    let base = calls[0].ptr.unwrap().addr();
    let copies = calls.iter().filter(|call| {
        matches!(
            call.operation,
            Operation::CopyHostToDevice | Operation::CopyDeviceToHost
        )
    });
    let mut offsets: Vec<usize> = copies.map(|call| call.ptr.unwrap().addr() - base).collect();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets, planned);
    assert_eq!(offsets, [0, 16, 32]);
    rig.assert_clean();
}

#[test]
fn each_device_gets_its_own_buffer_and_its_own_copies() {
    let rig = Rig::new();

    on_memory_of_the_runtime(&file("two_devices"), false, |session| {
        session.load("forward")?;
        let cuda = |index| Device::new(DeviceType::Cuda, index);
        assert_eq!(rig.bridge.lent(), [(cuda(0), 48), (cuda(1), 48)]);
        let inputs = session.inputs("forward", 1)?;
        session.run("forward", &inputs)?;
        Ok(())
    })
    .unwrap();

    for index in [0, 1] {
        let calls = rig.fake.calls();
        let on_it = calls.iter().filter(|call| call.index == index);
        assert!(on_it.count() >= 6, "cuda:{index}");
    }
    rig.assert_clean();
}

#[test]
fn unloading_a_method_gives_its_buffers_back() {
    let rig = Rig::new();

    on_memory_of_the_runtime(&file("mlp_cuda0"), false, |session| {
        for _ in 0..3 {
            session.load("forward")?;
            assert_eq!(rig.fake.live_bytes(), 2816);
            assert!(session.unload("forward"));
            assert_eq!(rig.fake.live_bytes(), 0);
        }
        Ok(())
    })
    .unwrap();

    assert_eq!(rig.fake.allocations(), 3);
    rig.assert_clean();
}

#[test]
fn a_device_without_room_is_an_error_of_the_runtime_and_leaves_nothing() {
    let fake = FakeDevice::builder(DeviceType::Cuda)
        .devices(2)
        .capacity(47)
        .build();
    let rig = Rig::with(fake);

    let loaded = on_memory_of_the_runtime(&file("add_cuda0"), false, |session| {
        Ok(session.load("forward"))
    });

    assert_eq!(
        loaded.unwrap(),
        Err(executorch::Error::MemoryAllocationFailed)
    );
    rig.assert_clean();
}

/// A bridge to a device that fails when told to, and the device.
fn faulty() -> (FaultInjector<FakeDevice>, Rig) {
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let faulty = FaultInjector::new(fake.clone());
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(faulty.clone())).unwrap();
    (faulty, Rig::with_registry(fake, Arc::new(registry)))
}

#[test]
fn the_second_buffer_that_fails_gives_the_first_back() {
    let (faulty, rig) = faulty();
    faulty.fail_nth(Operation::Allocate, 2);

    let loaded = on_memory_of_the_runtime(&file("two_devices"), false, |session| {
        let failed = session.load("forward");
        assert_eq!(rig.fake.live_blocks(), 0);
        session.load("forward")?;
        Ok(failed)
    });

    assert_eq!(
        loaded.unwrap(),
        Err(executorch::Error::MemoryAllocationFailed)
    );
    assert_eq!(rig.fake.allocations(), 3);
    rig.assert_clean();
}

#[test]
fn every_copy_that_fails_fails_the_run_and_leaves_nothing() {
    let copies = [
        (Operation::CopyHostToDevice, 3),
        (Operation::CopyDeviceToHost, 3),
    ];
    for (operation, count) in copies {
        for nth in 1..=count {
            let (faulty, rig) = faulty();
            faulty.fail_nth(operation, nth);

            let ran = on_memory_of_the_runtime(&file("add_cuda0"), false, |session| {
                let inputs = session.inputs("forward", 1)?;
                let failed = session.run("forward", &inputs);
                // The next run is as if nothing had happened.
                session.run("forward", &inputs)?;
                Ok(failed.map_err(|failure| failure.to_string()))
            });

            assert_eq!(ran.unwrap().unwrap_err(), "Internal", "{operation} {nth}");
            rig.assert_clean();
        }
    }
}

#[test]
fn a_type_that_nobody_serves_is_not_found() {
    let registry = Arc::new(DeviceAllocatorRegistry::new());
    let rig = Rig::with_registry(FakeDevice::new(DeviceType::Cuda, 1), registry.clone());

    let loaded = on_memory_of_the_runtime(&file("add_cuda0"), false, |session| {
        Ok(session.load("forward"))
    });

    assert_eq!(loaded.unwrap(), Err(executorch::Error::NotFound));
    let bytes = std::fs::read(file("add_cuda0")).unwrap();
    let plan = Program::parse(&bytes).unwrap().methods()[0].plan().unwrap();
    let ours = PlannedMemory::allocate(&plan, &registry).unwrap_err();
    assert_eq!(ours.code(), 0x20);
    rig.assert_clean();
}

#[test]
fn programs_of_several_threads_get_and_give_back_at_once() {
    let rig = Rig::new();

    thread::scope(|scope| {
        for name in [
            "add_cuda0",
            "two_devices",
            "same_device_chain",
            "add_cuda127",
        ] {
            scope.spawn(move || {
                for _ in 0..25 {
                    let ran: Result<(), Failure> =
                        on_memory_of_the_runtime(&file(name), false, |session| {
                            session.run_rounds(1).map(drop)
                        });
                    ran.unwrap();
                }
            });
        }
    });

    assert_eq!(rig.fake.allocations(), 25 * (1 + 2 + 1 + 1));
    rig.assert_clean();
}

#[test]
fn blocks_of_no_bytes_are_lent_and_taken_back_without_a_call() {
    use interop_executorch::forward::Source;
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    let bridge = Bridge::new(Arc::new(registry));

    let ptr = bridge.allocate(0, 0, 64).unwrap();
    assert!(ptr.addr().is_multiple_of(64) && !ptr.is_null());
    bridge.deallocate(ptr, 0);

    assert_eq!(bridge.strays(), 0);
    assert_eq!(fake.calls(), []);
    bridge.deallocate(ptr, 0);
    assert_eq!(bridge.strays(), 1);
}
