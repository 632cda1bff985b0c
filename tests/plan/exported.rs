//! The plans of ExecuTorch's exporter: whole methods, with all arenas and devices.

use std::path::Path;

use device_memory::Device;
use device_memory::plan::{Algorithm, DeviceOptions, PlanRequest, PlanValue};
use serde_json::Value;

use super::plan;

/// A method as the exporter planned it.
struct Exported {
    name: String,
    request: PlanRequest,
    /// The memory id, counted from 0, and the offset of each value.
    places: Vec<(u32, usize)>,
    /// The sizes by memory id, slot 0 reserved.
    sizes: Vec<usize>,
    /// The slots that are not of the host.
    devices: Vec<(usize, Device)>,
}

impl Exported {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            request: PlanRequest::new(),
            places: Vec::new(),
            sizes: vec![0],
            devices: Vec::new(),
        }
    }

    /// Adds what is on one device; its pools are numbered from 1 and take the next slots.
    fn add(&mut self, json: &Value) {
        let device: Device = json["device"].as_str().unwrap().parse().unwrap();
        let options = DeviceOptions::aligned(number(json, "alignment"));
        let padding = number(json, "extra_padding");
        self.request.set_device(device, options.padding(padding));
        let before = self.sizes.len() - 1;
        for tensor in json["tensors"].as_array().unwrap() {
            let steps = number(tensor, "start")..=number(tensor, "end");
            let pool = u32::try_from(number(tensor, "mem_id") - 1).unwrap();
            let value = PlanValue::new(number(tensor, "aligned"), steps);
            self.request.push(value.on(device).in_pool(pool));
            let memory_id = u32::try_from(before).unwrap() + pool;
            self.places.push((memory_id, number(tensor, "offset")));
        }
        for size in &json["buffer_sizes"].as_array().unwrap()[1..] {
            if device != Device::CPU {
                self.devices.push((self.sizes.len(), device));
            }
            self.sizes
                .push(usize::try_from(size.as_u64().unwrap()).unwrap());
        }
    }
}

fn number(json: &Value, field: &str) -> usize {
    usize::try_from(json[field].as_u64().unwrap()).unwrap()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// All methods of all plans, in the order of the files.
fn exported() -> Vec<Exported> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pte");
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".plan.json"));
    files.sort();
    let mut methods = Vec::new();
    for json in files.iter().map(|file| read(file)) {
        let name = json["name"].as_str().unwrap();
        methods.push(Exported::new(name));
        let mut last = None;
        for arena in json["arenas"].as_array().unwrap() {
            let device: Device = arena["device"].as_str().unwrap().parse().unwrap();
            // Devices come in their order, the host first: one that does not is of the
            // next method.
            if last.is_some_and(|last| device <= last) {
                methods.push(Exported::new(name));
            }
            last = Some(device);
            methods.last_mut().unwrap().add(arena);
        }
    }
    methods
}

#[test]
fn executorch_greedy_gives_every_plan_of_the_exporter() {
    let exported = exported();

    let mut arenas = 0;
    for method in &exported {
        let report = plan(&method.request, Algorithm::ExecutorchGreedy);

        let placements = report.plan.placements().iter();
        let found = placements.map(|placement| (placement.memory_id, placement.offset));
        assert!(found.eq(method.places.iter().copied()), "{}", method.name);
        arenas += report.arenas.len();
    }
    assert_eq!((exported.len(), arenas), (37, 55));
}

#[test]
fn the_arenas_of_every_plan_of_the_exporter_are_listed_as_it_lists_them() {
    for method in exported() {
        let report = plan(&method.request, Algorithm::ExecutorchGreedy);

        let layout = report.executorch_layout();
        // There is a slot of the host in any case.
        let mut sizes = method.sizes.clone();
        sizes.resize(sizes.len().max(2), 0);
        assert_eq!(layout.sizes, sizes, "{}", method.name);
        assert_eq!(layout.devices, method.devices, "{}", method.name);
    }
}

#[test]
fn the_arenas_of_every_plan_are_those_of_the_program_that_was_exported() {
    // The first plans for a device what its program keeps on the host, and the other has
    // an arena for state that no plan shows.
    let exceptions = ["add_legacy_cpu_arena", "shared_state_cpu"];
    let mut compared = 0;
    for method in exported() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pte");
        let file = folder.join(format!("{}.expect.json", method.name));
        if exceptions.contains(&method.name.as_str()) || !file.exists() {
            continue;
        }

        let layout = plan(&method.request, Algorithm::ExecutorchGreedy).executorch_layout();

        let program = read(&file);
        let methods = program["methods"].as_array().unwrap().iter();
        let mut listed = methods.map(|method| &method["non_const_buffer_sizes"]);
        let sizes = serde_json::to_value(&layout.sizes).unwrap();
        assert!(listed.any(|listed| *listed == sizes), "{}", method.name);
        compared += 1;
    }
    assert_eq!(compared, 29);
}

#[test]
fn every_arena_of_the_exporter_is_planned_at_its_lower_bound() {
    for method in exported() {
        for algorithm in [Algorithm::Auto, Algorithm::Optimal] {
            for arena in plan(&method.request, algorithm).arenas {
                assert_eq!(arena.gap(), 0, "{} {algorithm}", method.name);
            }
        }
    }
}
