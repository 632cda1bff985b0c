//! The conformance suite, on the fake driver, a simulation.

use device_memory::DeviceAllocator;
use device_memory::backend::cuda::{CudaAllocator, CudaHostAllocator, CudaManagedAllocator};
use device_memory::testing::conformance::Conformance;
use fakecuda::{FakeCuda, Schedule};

use crate::support::{assert_all_given_back, driver, restart, stream};

/// Sizes and threads that keep the suite short; `shared` because pools keep
/// memory until somebody waits.
fn suite(allocator: &dyn DeviceAllocator) -> Conformance<'_> {
    Conformance::new(allocator)
        .max_size(1 << 13)
        .threads(3)
        .shared_devices(true)
}

#[track_caller]
fn conforms(fake: &FakeCuda, run: &Conformance<'_>, what: &str) {
    if let Err(failure) = run.run() {
        panic!("{what}: {failure}");
    }
    assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
}

#[test]
fn it_conforms_in_every_schedule_with_and_without_pools_on_1_and_2_devices() {
    let fake = driver(1);
    for devices in [1, 2] {
        for pools in [true, false] {
            for schedule in Schedule::all(2) {
                restart(&fake, devices, pools);
                fake.set_schedule(schedule);
                let allocator = CudaAllocator::open().unwrap();
                let what = format!("{devices} devices, pools {pools}, {schedule:?}");

                conforms(&fake, &suite(&allocator), &what);

                drop(allocator);
                assert_all_given_back(&fake);
            }
        }
    }
}

#[test]
fn it_conforms_in_every_schedule_with_and_without_pools_on_8_devices() {
    let fake = driver(8);
    for pools in [true, false] {
        for schedule in Schedule::all(1) {
            restart(&fake, 8, pools);
            fake.set_schedule(schedule);
            let allocator = CudaAllocator::open().unwrap();
            let what = format!("8 devices, pools {pools}, {schedule:?}");

            conforms(&fake, &suite(&allocator).max_align(1 << 12), &what);

            drop(allocator);
            assert_all_given_back(&fake);
        }
    }
}

#[test]
fn it_conforms_with_large_blocks_and_alignments() {
    let fake = driver(1);
    fake.set_schedule(Schedule::Delayed);
    let allocator = CudaAllocator::open().unwrap();

    let run = Conformance::new(&allocator).max_size(1 << 19);
    conforms(&fake, &run.shared_devices(true), "large blocks");

    drop(allocator);
    assert_all_given_back(&fake);
}

#[test]
fn it_conforms_with_a_pool_of_its_own() {
    let fake = driver(2);
    for schedule in Schedule::all(1) {
        restart(&fake, 2, true);
        fake.set_schedule(schedule);
        let builder = CudaAllocator::builder().release_threshold(1 << 20);
        let allocator = builder.open().unwrap();

        conforms(&fake, &suite(&allocator), &format!("{schedule:?}"));

        drop(allocator);
        assert_all_given_back(&fake);
    }
}

#[test]
fn a_handle_on_a_stream_conforms_in_every_schedule_with_and_without_pools() {
    let fake = driver(2);
    for pools in [true, false] {
        for schedule in Schedule::all(2) {
            restart(&fake, 1, pools);
            fake.set_schedule(schedule);
            let allocator = CudaAllocator::open().unwrap();
            let handle = allocator.on_stream(&stream(0)).unwrap();
            let what = format!("pools {pools}, {schedule:?}");

            conforms(&fake, &suite(&handle), &what);

            drop((allocator, handle));
            assert_all_given_back(&fake);
        }
    }
}

#[test]
fn page_locked_memory_conforms_plain_and_write_combined() {
    let fake = driver(2);
    for schedule in Schedule::all(1) {
        restart(&fake, 2, true);
        fake.set_schedule(schedule);
        let plain = CudaHostAllocator::open().unwrap();
        let combined = plain.write_combined();

        for (allocator, what) in [(&plain, "plain"), (&combined, "write-combined")] {
            let run = suite(allocator).may_refuse_alignments_above(256);
            conforms(&fake, &run, what);
        }

        drop((plain, combined));
        assert_all_given_back(&fake);
    }
}

#[test]
fn managed_memory_conforms() {
    let fake = driver(2);
    for schedule in Schedule::all(1) {
        restart(&fake, 2, true);
        fake.set_schedule(schedule);
        let allocator = CudaManagedAllocator::open().unwrap();

        let run = suite(&allocator).may_refuse_alignments_above(256);
        conforms(&fake, &run, "managed");

        drop(allocator);
        assert_all_given_back(&fake);
    }
}
