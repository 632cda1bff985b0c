//! What the tests share.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::PathBuf;
use std::sync::Arc;

use device_memory::pte::Program;
use device_memory::testing::FakeDevice;
use device_memory::{DeviceAllocatorRegistry, DeviceType};
use interop_executorch::Bridge;
use interop_executorch::forward::{Installed, install};

/// The device programs that the stand-in can run with inputs on the host.
pub(crate) const DEVICE_PROGRAMS: [&str; 12] = [
    "add_cuda0",
    "add_cuda1",
    "add_cuda127",
    "add_inline_blob_cuda0",
    "conv_cuda0",
    "dynamic_cuda0",
    "mlp_cuda0",
    "same_device_chain",
    "transformer_cuda0",
    "transformer_mixed",
    "transformer_one_delegate",
    "two_devices",
];

/// The file of a program.
pub(crate) fn file(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join(format!("../../tests/data/pte/{name}.pte"))
}

/// The names of all programs there are, sorted.
fn names() -> Vec<String> {
    let files = std::fs::read_dir(file("add_cpu").parent().unwrap()).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let programs = paths.filter(|path| path.extension().is_some_and(|end| end == "pte"));
    let mut names: Vec<String> = programs
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

/// The programs that need no delegate.
pub(crate) fn cpu_programs() -> Vec<String> {
    let mut names = names();
    names.retain(|name| {
        let bytes = std::fs::read(file(name)).unwrap();
        let program = Program::parse(&bytes).unwrap();
        let methods = program.methods();
        methods.iter().all(|method| method.delegates().count() == 0)
    });
    names
}

/// A fake device, a registry that it is in, and a bridge that lends it to the runtime.
pub(crate) struct Rig {
    pub(crate) fake: FakeDevice,
    pub(crate) registry: Arc<DeviceAllocatorRegistry>,
    pub(crate) bridge: Arc<Bridge>,
    _installed: Installed,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(FakeDevice::new(DeviceType::Cuda, 128))
    }

    pub(crate) fn with(fake: FakeDevice) -> Self {
        let registry = Arc::new(DeviceAllocatorRegistry::new());
        registry.register(Arc::new(fake.clone())).unwrap();
        Self::with_registry(fake, registry)
    }

    /// With a registry in which `fake` is, perhaps under something else.
    pub(crate) fn with_registry(fake: FakeDevice, registry: Arc<DeviceAllocatorRegistry>) -> Self {
        let bridge = Arc::new(Bridge::new(Arc::clone(&registry)));
        Self {
            fake,
            registry,
            _installed: install(bridge.clone()),
            bridge,
        }
    }

    /// Checks that the runtime has given everything back and did nothing wrong.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.bridge.lent(), []);
        assert_eq!(self.bridge.strays(), 0);
        self.fake.assert_clean();
        assert_eq!(self.fake.allocations(), self.fake.deallocations());
    }
}
