//! The released runtime gives the same for a program before and after its memory
//! was planned again, bit for bit.

mod support;

use device_memory::DeviceAllocatorRegistry;
use device_memory::plan::PlanOptions;
use device_memory::pte::replan;
use interop_executorch::program::{run_on_memory_of_the_runtime, run_on_planned_memory};

use support::{DEVICE_PROGRAMS, Rig, cpu_programs, file};

/// Runs `name` as it is and planned again, on both kinds of memory, and says the
/// bytes of all its arenas before and after, if those are fewer.
fn compare(name: &str, registry: &DeviceAllocatorRegistry) -> Option<(usize, usize)> {
    let old = file(name);
    let replanned = replan(&std::fs::read(&old).unwrap(), &PlanOptions::default()).unwrap();
    let is_changed = replanned.bytes != std::fs::read(&old).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join(format!("{name}.pte"));
    std::fs::write(&new, &replanned.bytes).unwrap();

    let before = run_on_memory_of_the_runtime(&old, registry, 4).unwrap();
    let after = run_on_memory_of_the_runtime(&new, registry, 4).unwrap();
    let after_on_planned = run_on_planned_memory(&new, registry, 4).unwrap();

    assert_eq!(after, before, "{name}");
    assert_eq!(after_on_planned, before, "{name}");
    // Rounds differ, so that outputs that nobody writes would be noticed.
    assert_ne!(before[0].outputs, before.last().unwrap().outputs, "{name}");
    let arenas = replanned.arenas.iter();
    let sum = arenas.fold((0, 0), |(before, after), arena| {
        (before + arena.before, after + arena.after)
    });
    // Programs that would not get smaller stay as they are.
    assert_eq!(sum.0 != sum.1, is_changed, "{name}");
    is_changed.then_some(sum)
}

#[test]
fn every_cpu_program_gives_the_same_after_it_was_planned_again() {
    let registry = DeviceAllocatorRegistry::new();
    let names = cpu_programs();

    let smaller = names.iter().filter_map(|name| {
        let (before, after) = compare(name, &registry)?;
        Some((name.as_str(), before, after))
    });

    let smaller: Vec<_> = smaller.collect();
    assert_eq!(
        smaller,
        [("kinds_cpu", 256, 240), ("transformer_cpu", 18432, 17408)]
    );
}

#[test]
fn every_device_program_gives_the_same_after_it_was_planned_again() {
    let smaller = DEVICE_PROGRAMS.iter().filter_map(|&name| {
        let rig = Rig::new();
        let sizes = compare(name, &rig.registry);
        rig.assert_clean();
        let (before, after) = sizes?;
        Some((name, before, after))
    });

    let smaller: Vec<_> = smaller.collect();
    assert_eq!(smaller, [("dynamic_cuda0", 8960, 8448)]);
}
