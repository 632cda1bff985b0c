//! The released runtime runs programs in planned memory of this project, and
//! gives what it gives in memory of its own, bit for bit.

#![expect(unsafe_code, reason = "a tensor over memory of a device")]

mod support;

use device_memory::pte::Program;
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceType, MemoryPlan, Placement, PlannedBuffer,
    PlannedMemory,
};
use interop_executorch::program::{
    on_memory_of_the_runtime, on_planned_memory, run_on_memory_of_the_runtime,
    run_on_planned_memory,
};
use interop_executorch::value::Input;

use support::{DEVICE_PROGRAMS, Rig, cpu_programs, file};

/// Two tensors on the device, for programs whose inputs must be there.
struct Held {
    memory: PlannedMemory,
    plan: MemoryPlan,
}

impl Held {
    fn new(registry: &DeviceAllocatorRegistry) -> Self {
        let device = Device::new(DeviceType::Cuda, 0);
        let plan = MemoryPlan::new(
            vec![PlannedBuffer::new(device, 32)],
            vec![Placement::new(0, 0, 16), Placement::new(0, 16, 16)],
        )
        .unwrap();
        let mut memory = PlannedMemory::allocate(&plan, registry).unwrap();
        let numbers = [[1.0_f32, 2.0, 3.0, 4.0], [0.5, 0.25, -1.0, 8.0]];
        for (&placement, numbers) in plan.placements().iter().zip(numbers) {
            let bytes = numbers.map(f32::to_le_bytes).concat();
            let mut view = memory.view().unwrap();
            view.span_mut(placement)
                .unwrap()
                .copy_from_host(&bytes)
                .unwrap();
        }
        Self { memory, plan }
    }

    fn inputs(&self) -> Vec<Input> {
        let addresses = self.plan.placements().iter();
        let addresses = addresses.map(|&placement| self.memory.address(0, placement).unwrap());
        addresses
            .map(|address| {
                // SAFETY: the block lives in `self`, which outlives the inputs in these tests.
                unsafe { Input::on_device(&[2, 2], address) }.unwrap()
            })
            .collect()
    }
}

#[test]
fn every_cpu_program_gives_the_same_in_planned_memory_as_in_memory_of_the_runtime() {
    let registry = DeviceAllocatorRegistry::new();
    let names = cpu_programs();

    for name in &names {
        let own = run_on_memory_of_the_runtime(&file(name), &registry, 4).unwrap();
        let planned = run_on_planned_memory(&file(name), &registry, 4).unwrap();

        assert_eq!(planned, own, "{name}");
        assert!(own.iter().all(|run| !run.outputs.is_empty()), "{name}");
        // Rounds differ, so that outputs that nobody writes would be noticed.
        assert_ne!(own[0].outputs, own.last().unwrap().outputs, "{name}");
    }

    let expected = [
        "add_cpu",
        "aligned64_cpu",
        "channels_last_cpu",
        "conv_cpu",
        "dynamic_cpu",
        "kinds_cpu",
        "mlp_cpu",
        "multi_method_cpu",
        "mutable_buffer_cpu",
        "pools_cpu",
        "shared_state_cpu",
        "transformer_cpu",
        "unplanned_io_cpu",
    ];
    assert_eq!(names, expected);
}

#[test]
fn every_device_program_gives_the_same_in_planned_memory_as_in_memory_of_the_runtime() {
    for name in DEVICE_PROGRAMS {
        let rig = Rig::new();

        let own = run_on_memory_of_the_runtime(&file(name), &rig.registry, 3).unwrap();
        let planned = run_on_planned_memory(&file(name), &rig.registry, 3).unwrap();

        assert_eq!(planned, own, "{name}");
        assert_ne!(own[0].outputs, own.last().unwrap().outputs, "{name}");
        rig.assert_clean();
    }
}

#[test]
fn an_addition_on_a_device_gives_the_sum() {
    let rig = Rig::new();

    let on_host = run_on_memory_of_the_runtime(&file("add_cpu"), &rig.registry, 3).unwrap();
    let on_device = run_on_memory_of_the_runtime(&file("add_cuda0"), &rig.registry, 3).unwrap();

    assert_eq!(on_device, on_host);
}

#[test]
fn outputs_lie_where_the_plan_says() {
    for name in cpu_programs() {
        let bytes = std::fs::read(file(&name)).unwrap();
        let program = Program::parse(&bytes).unwrap();
        let method = &program.methods()[0];
        let plan = method.plan().unwrap();
        let registry = DeviceAllocatorRegistry::new();
        let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
        let placed: Vec<Option<Placement>> = method
            .outputs()
            .map(|(value, _)| {
                let mut planned = method.planned_tensors();
                let tensor = planned.find(|tensor| tensor.value() == value);
                tensor.map(|tensor| tensor.placement())
            })
            .collect();
        let expected = placed.iter().map(|placement| {
            placement.map(|placement| memory.address(0, placement).unwrap().ptr.addr())
        });
        let expected: Vec<Option<usize>> = expected.collect();

        let outputs = on_planned_memory(&file(&name), &mut memory, &[method.name()], |session| {
            session.place_outputs(&registry)?;
            let inputs = session.inputs(method.name(), 7)?;
            session.run(method.name(), &inputs)
        });

        for ((_, address), expected) in outputs.unwrap().iter().zip(&expected) {
            match expected {
                Some(expected) => assert_eq!(address, expected, "{name}"),
                None => assert_eq!(name, "unplanned_io_cpu"),
            }
        }
    }
}

#[test]
fn memory_that_is_handed_over_is_all_the_device_memory_there_is() {
    for name in DEVICE_PROGRAMS {
        let rig = Rig::new();
        let bytes = std::fs::read(file(name)).unwrap();
        let program = Program::parse(&bytes).unwrap();
        let plan = program.method("forward").unwrap().plan().unwrap();
        let mut memory = PlannedMemory::allocate(&plan, &rig.registry).unwrap();
        let (blocks, allocations) = (rig.fake.live(), rig.fake.allocations());

        let ran = on_planned_memory(&file(name), &mut memory, &["forward"], |session| {
            assert_eq!(rig.bridge.lent(), []);
            session.run_rounds(2)
        });

        ran.unwrap();
        assert_eq!(rig.fake.live(), blocks, "{name}");
        assert_eq!(rig.fake.allocations(), allocations, "{name}");
        drop(memory);
        rig.assert_clean();
    }
}

#[test]
fn state_stays_in_memory_that_methods_share() {
    let registry = DeviceAllocatorRegistry::new();

    let runs = run_on_planned_memory(&file("shared_state_cpu"), &registry, 3).unwrap();

    let outputs_of = |method: &str| {
        let runs = runs.iter().filter(|run| run.method == method);
        runs.map(|run| &run.outputs).collect::<Vec<_>>()
    };
    let (peeks, steps) = (outputs_of("peek"), outputs_of("step"));
    assert_eq!((peeks.len(), steps.len()), (3, 3));
    assert_ne!(peeks[0], peeks[1]);
    assert_ne!(peeks[1], peeks[2]);

    // Without sharing, `peek` sees nothing of what `step` leaves.
    let apart = on_memory_of_the_runtime(&file("shared_state_cpu"), false, |session| {
        session.run_rounds(3)
    });
    assert_ne!(apart.unwrap(), runs);
}

#[test]
fn a_buffer_that_is_too_small_is_refused_by_the_runtime_and_not_written_past() {
    let plan = MemoryPlan::new(vec![PlannedBuffer::new(Device::CPU, 47)], vec![]).unwrap();
    let registry = DeviceAllocatorRegistry::new();
    let mut memory = PlannedMemory::allocate(&plan, &registry).unwrap();
    memory.fill(0xA5).unwrap();

    let loaded = on_planned_memory(&file("add_cpu"), &mut memory, &["forward"], |_| Ok(()));

    assert_eq!(loaded.unwrap_err().to_string(), "MemoryAllocationFailed");
    assert_eq!(memory.buffers()[0].to_vec().unwrap(), [0xA5; 47]);
}

#[test]
fn inputs_and_outputs_that_stay_on_the_device_are_in_planned_memory() {
    for (name, is_input_on_device) in [("skip_h2d", true), ("skip_both", true), ("skip_d2h", false)]
    {
        let rig = Rig::new();
        let held = Held::new(&rig.registry);
        let program = std::fs::read(file(name)).unwrap();
        let program = Program::parse(&program).unwrap();
        let plan = program.method("forward").unwrap().plan().unwrap();
        let mut memory = PlannedMemory::allocate(&plan, &rig.registry).unwrap();

        let outputs = on_planned_memory(&file(name), &mut memory, &["forward"], |session| {
            session.place_outputs(&rig.registry)?;
            let inputs = if is_input_on_device {
                held.inputs()
            } else {
                session.inputs("forward", 1)?
            };
            session.run("forward", &inputs)
        });

        let (output, _) = &outputs.unwrap()[0];
        if is_input_on_device {
            let sum = [1.5_f32, 2.25, 2.0, 12.0].map(f32::to_le_bytes).concat();
            assert_eq!(output.bytes, Some(sum), "{name}");
        } else {
            let sum = on_memory_of_the_runtime(&file("add_cpu"), false, |session| {
                let inputs = session.inputs("forward", 1)?;
                session.run("forward", &inputs)
            });
            assert_eq!(output, &sum.unwrap()[0].0, "{name}");
        }
        drop((memory, held));
        rig.assert_clean();
    }
}

#[test]
fn an_output_without_memory_is_refused_before_the_runtime_writes_to_it() {
    let ran = on_memory_of_the_runtime(&file("unplanned_io_cpu"), false, |session| {
        let inputs = session.inputs("forward", 1)?;
        session.run("forward", &inputs)
    });

    assert_eq!(
        ran.unwrap_err().to_string(),
        "output 0 of forward has no memory"
    );
}
