//! The same sequences on the runtime's own types and on those of this project:
//! equal where the contract says equal, different exactly where it says different.
//!
//! Where the difference is that something can not be said here, our half is that no
//! such value can be made.

#![expect(unsafe_code, reason = "an allocator that answers as it is told")]

#[path = "../../../tests/support/constant_address.rs"]
mod constant_address;
mod support;

use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex};

use constant_address::ConstantAddress;
use device_memory::pte::Program;
use device_memory::testing::{Call, FakeDevice, FaultInjector};
use device_memory::{
    AllocatorFault, Device, DeviceAllocatorRegistry, DeviceIndex, DeviceLayout, DeviceMemoryBuffer,
    DevicePtr, DeviceSpanMut, DeviceType, Error, ErrorKind, HierarchicalAllocator, Operation,
    PlannedMemory, Result, TensorViewMut,
};
use interop_executorch::forward::{Code, Source, install, is_registered};
use interop_executorch::original;
use interop_executorch::program::on_memory_of_the_runtime;
use proptest::prelude::*;

use support::{Rig, file};

const CUDA: i8 = 1;

/// Both owners of memory, on a fake device each.
struct Both {
    rig: Rig,
    ours: FakeDevice,
    registry: DeviceAllocatorRegistry,
}

impl Both {
    fn new(capacity: usize) -> Self {
        let device = || {
            let builder = FakeDevice::builder(DeviceType::Cuda);
            builder.devices(2).capacity(capacity).build()
        };
        let ours = device();
        let registry = DeviceAllocatorRegistry::new();
        registry.register(Arc::new(ours.clone())).unwrap();
        Self {
            rig: Rig::with(device()),
            ours,
            registry,
        }
    }

    fn create(&self, size: usize, index: DeviceIndex, align: usize) -> Result<DeviceMemoryBuffer> {
        let layout = DeviceLayout::new(size, align)?;
        DeviceMemoryBuffer::create_in(&self.registry, layout, Device::new(DeviceType::Cuda, index))
    }

    /// Checks that both devices were asked the same, and have the same.
    fn assert_same_calls(&self) {
        assert_eq!(plain(&self.rig.fake.calls()), plain(&self.ours.calls()));
        assert_eq!(self.rig.fake.live_bytes(), self.ours.live_bytes());
        assert_eq!(self.rig.fake.live_blocks(), self.ours.live_blocks());
    }
}

/// The calls, with the number of the allocation in place of an address.
fn plain(calls: &[Call]) -> Vec<(Operation, DeviceIndex, usize, Option<usize>, bool, usize)> {
    let mut known: Vec<DevicePtr> = Vec::new();
    let calls = calls.iter().map(|call| {
        let number = call.ptr.map_or(usize::MAX, |ptr| {
            if call.operation == Operation::Allocate {
                known.push(ptr);
            }
            known.iter().rposition(|&other| other == ptr).unwrap()
        });
        let Call {
            operation,
            index,
            size,
            align,
            succeeded,
            ..
        } = *call;
        (operation, index, size, align, succeeded, number)
    });
    calls.collect()
}

/// What a test does to one of four owners.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create(usize, usize, u8, u32),
    Move(usize, usize),
    Rebuild(usize),
    Clear(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_usize, 1..3000_usize, 0..2_u8, 0..10_u32)
            .prop_map(|(slot, size, index, log)| Step::Create(slot, size, index, log)),
        2 => (0..4_usize, 0..4_usize).prop_map(|(from, to)| Step::Move(from, to)),
        1 => (0..4_usize).prop_map(Step::Rebuild),
        1 => (0..4_usize).prop_map(Step::Clear),
    ]
}

proptest! {
    /// Create, move-construct, move-assign and destroy, in any order, also onto what
    /// is owned already and also when there is no room.
    #[test]
    fn owners_ask_the_same_of_a_device(steps in proptest::collection::vec(step(), 0..40)) {
        let both = Both::new(6000);
        let mut theirs: Vec<_> = (0..4).map(|_| original::Buffer::empty().unwrap()).collect();
        let mut ours: Vec<_> = (0..4).map(|_| DeviceMemoryBuffer::default()).collect();

        for step in steps {
            match step {
                Step::Create(slot, size, index, log) => {
                    let align = 1 << log;
                    let signed = i8::try_from(index).unwrap();
                    let their = original::Buffer::create(size, CUDA, signed, align);
                    let our = both.create(size, index.into(), align);
                    prop_assert_eq!(
                        their.as_ref().err().copied(),
                        our.as_ref().err().map(Error::code)
                    );
                    if let (Ok(their), Ok(our)) = (their, our) {
                        prop_assert!(their.data().addr().is_multiple_of(align));
                        theirs[slot] = their;
                        ours[slot] = our;
                    }
                }
                Step::Move(from, to) if from == to => {
                    theirs[from].assign_to_itself();
                }
                Step::Move(from, to) => {
                    let mut moved = mem::replace(
                        &mut theirs[from],
                        original::Buffer::empty().unwrap(),
                    );
                    theirs[to].assign(&mut moved);
                    prop_assert!(moved.data().is_null() && moved.size() == 0);
                    ours[to] = mem::take(&mut ours[from]);
                }
                Step::Rebuild(slot) => {
                    theirs[slot] = theirs[slot].take().unwrap();
                    ours[slot] = mem::take(&mut ours[slot]);
                }
                Step::Clear(slot) => {
                    theirs[slot] = original::Buffer::empty().unwrap();
                    ours[slot] = DeviceMemoryBuffer::default();
                }
            }
            for (their, our) in theirs.iter().zip(&ours) {
                prop_assert_eq!(their.size(), our.size());
                prop_assert_eq!(their.data().is_null(), our.is_empty());
            }
            both.assert_same_calls();
        }
        drop((theirs, ours));

        both.assert_same_calls();
        both.rig.assert_clean();
        both.ours.assert_clean();
    }

    /// Every answer of the offset arithmetic: the address, or the class of the error.
    #[test]
    fn offsets_are_the_same_numbers_and_the_same_refusals(
        sizes in proptest::collection::vec(prop_oneof![0..100_usize, Just(1 << 40)], 0..5),
        asked in proptest::collection::vec((0..6_u32, edge(), edge()), 1..30),
    ) {
        let base = |id: usize| 0x10_0000_0000_usize * (id + 1);
        let device = Device::new(DeviceType::Cuda, 0);
        let buffers: Vec<(usize, usize)> =
            sizes.iter().enumerate().map(|(id, &size)| (base(id), size)).collect();
        let devices = vec![device; buffers.len()];
        let theirs = original::Planned::new(&buffers, &devices).unwrap();
        let nowhere = FakeDevice::new(DeviceType::Cuda, 1);
        let spans = buffers.iter().map(|&(address, size)| {
            let ptr = DevicePtr::from_addr(address).unwrap();
            // SAFETY: nothing copies to or from the views; only their addresses are used.
            unsafe { DeviceSpanMut::from_raw_parts(ptr, size, device, &nowhere) }
        });
        let ours = HierarchicalAllocator::new(spans.collect(), &devices).unwrap();

        for (memory_id, offset, size) in asked {
            let their = theirs.get_offset_address(memory_id, offset, size);
            let our = ours.get_offset_address(memory_id, offset, size);
            let our = our.map(|address| address.ptr.addr()).map_err(|error| error.code());
            prop_assert_eq!(our, their, "memory id {} offset {} size {}", memory_id, offset, size);
        }
    }
}

/// Numbers of all sizes, most of them near something that matters.
fn edge() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..102_usize,
        (1_usize << 40) - 3..(1 << 40) + 3,
        usize::MAX - 3..=usize::MAX,
        any::<usize>(),
    ]
}

/// A source that answers what it is told to, and remembers what it was asked.
struct Scripted {
    answer: std::result::Result<usize, Code>,
    asked: Mutex<Vec<(usize, i8, usize)>>,
    freed: Mutex<Vec<(usize, i8)>>,
}

impl Scripted {
    fn new(answer: std::result::Result<usize, Code>) -> Arc<Self> {
        Arc::new(Self {
            answer,
            asked: Mutex::default(),
            freed: Mutex::default(),
        })
    }

    fn asked(&self) -> Vec<(usize, i8, usize)> {
        self.asked.lock().unwrap().clone()
    }

    fn freed(&self) -> Vec<(usize, i8)> {
        self.freed.lock().unwrap().clone()
    }
}

// SAFETY: it copies nothing.
unsafe impl Source for Scripted {
    fn allocate(&self, size: usize, index: i8, align: usize) -> std::result::Result<*mut u8, Code> {
        self.asked.lock().unwrap().push((size, index, align));
        self.answer.map(std::ptr::without_provenance_mut)
    }

    fn deallocate(&self, ptr: *mut u8, index: i8) {
        self.freed.lock().unwrap().push((ptr.addr(), index));
    }

    unsafe fn copy_host_to_device(
        &self,
        _: *mut u8,
        _: *const u8,
        _: usize,
        _: i8,
    ) -> std::result::Result<(), Code> {
        Err(0x01)
    }

    unsafe fn copy_device_to_host(
        &self,
        _: *mut u8,
        _: *const u8,
        _: usize,
        _: i8,
    ) -> std::result::Result<(), Code> {
        Err(0x01)
    }
}

#[test]
fn equal_an_error_of_the_allocator_comes_out_as_it_went_in() {
    let both = Both::new(100);

    let their = original::Buffer::create(101, CUDA, 0, 8).unwrap_err();
    let our = both.create(101, 0, 8).unwrap_err();

    assert_eq!(their, 0x21);
    assert_eq!(our.code(), their);
    both.assert_same_calls();
}

#[test]
fn equal_the_default_owner_is_empty_and_frees_nothing() {
    let both = Both::new(100);

    let their = original::Buffer::empty().unwrap();
    let our = DeviceMemoryBuffer::default();

    assert_eq!((their.data().is_null(), their.size()), (true, 0));
    assert_eq!((our.is_empty(), our.size()), (true, 0));
    drop((their, our));
    both.assert_same_calls();
    assert_eq!(both.ours.calls(), []);
}

#[test]
fn differs_alignments_that_are_none_can_be_asked_for_there() {
    for align in [0, 3, 12] {
        let source = Scripted::new(Ok(0x10_0000));
        let _installed = install(source.clone());

        let their = original::Buffer::create(64, CUDA, 0, align);

        assert!(their.is_ok());
        assert_eq!(source.asked(), [(64, 0, align)]);
        // Here no allocator can be asked: there is no such layout.
        let our = DeviceLayout::new(64, align).map_err(Error::from);
        assert_eq!(our.unwrap_err().code(), 0x12);
    }
}

#[test]
fn differs_sizes_past_isize_max_can_be_asked_for_there() {
    let source = Scripted::new(Ok(0x10_0000));
    let _installed = install(source.clone());

    let their = original::Buffer::create(usize::MAX, CUDA, 0, 8).unwrap();

    assert_eq!(their.size(), usize::MAX);
    assert_eq!(source.asked(), [(usize::MAX, 0, 8)]);
    // Here no allocator can be asked: there is no such layout.
    let our = DeviceLayout::new(usize::MAX, 8).map_err(Error::from);
    assert_eq!(our.unwrap_err().code(), 0x12);
}

#[test]
fn differs_the_index_minus_one_can_be_asked_for_there() {
    let source = Scripted::new(Ok(0x10_0000));
    let _installed = install(source.clone());

    let their = original::Buffer::create(64, CUDA, -1, 8);

    assert!(their.is_ok());
    assert_eq!(source.asked(), [(64, -1, 8)]);
    drop(their);
    assert_eq!(source.freed(), [(0x10_0000, -1)]);
    // Here an index has no sign, and text that has one is no device.
    assert!("cuda:-1".parse::<Device>().is_err());
}

#[test]
fn equal_an_index_that_is_not_there_is_an_error_of_the_same_class() {
    let both = Both::new(100);

    let their = original::Buffer::create(64, CUDA, 2, 8).unwrap_err();
    let our = both.create(64, 2, 8).unwrap_err();

    assert_eq!((their, our.code()), (0x12, 0x12));
    assert_eq!(both.rig.fake.live_blocks(), 0);
    assert_eq!(both.ours.live_blocks(), 0);
}

#[test]
fn differs_no_bytes_reach_the_allocator_there() {
    let source = Scripted::new(Ok(0x10_0000));
    let _installed = install(source.clone());
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(fake.clone())).unwrap();
    let layout = DeviceLayout::new(0, 8).unwrap();

    let their = original::Buffer::create(0, CUDA, 0, 8).unwrap();
    let device = Device::new(DeviceType::Cuda, 0);
    let our = DeviceMemoryBuffer::create_in(&registry, layout, device).unwrap();

    assert_eq!((their.size(), our.size()), (0, 0));
    drop((their, our));
    assert_eq!(source.asked(), [(0, 0, 8)]);
    assert_eq!(source.freed(), [(0x10_0000, 0)]);
    assert_eq!(fake.calls(), []);
}

#[test]
fn differs_an_address_of_null_is_memory_there() {
    let source = Scripted::new(Ok(0));
    let _installed = install(source.clone());

    let their = original::Buffer::create(64, CUDA, 0, 8).unwrap();

    assert_eq!((their.data().is_null(), their.size()), (true, 64));
    drop(their);
    assert_eq!(source.freed(), []);
    // Here an allocator can not say null: its address is no null by its type.
    assert!(DevicePtr::from_addr(0).is_none());
}

#[test]
fn differs_an_address_that_is_not_aligned_is_memory_there() {
    let source = Scripted::new(Ok(0x10_0001));
    let _installed = install(source.clone());
    let registry = DeviceAllocatorRegistry::new();
    registry
        .register(Arc::new(ConstantAddress::<0x10_0001>))
        .unwrap();
    let layout = DeviceLayout::new(64, 64).unwrap();

    let their = original::Buffer::create(64, CUDA, 0, 64);
    let device = Device::new(DeviceType::Cuda, 0);
    let our = DeviceMemoryBuffer::create_in(&registry, layout, device).unwrap_err();

    assert_eq!(their.unwrap().data().addr(), 0x10_0001);
    assert!(matches!(
        our.kind(),
        ErrorKind::BadAllocator {
            fault: AllocatorFault::Misaligned { .. },
            ..
        }
    ));
}

#[test]
fn equal_codes_of_no_type_have_no_allocator() {
    let _rig = Rig::new();

    for code in [-1, 2, 100, i8::MIN] {
        assert!(!is_registered(code));
        assert_eq!(DeviceType::from_executorch(code), None);
    }
    assert!(is_registered(CUDA));
    assert_eq!(DeviceType::from_executorch(CUDA), Some(DeviceType::Cuda));
}

#[test]
fn differs_the_host_is_served_without_registration_here() {
    assert!(!is_registered(0));
    assert_eq!(original::Buffer::create(64, 0, 0, 8).unwrap_err(), 0x20);

    let registry = DeviceAllocatorRegistry::new();
    let layout = DeviceLayout::new(64, 8).unwrap();
    let our = DeviceMemoryBuffer::create_in(&registry, layout, Device::CPU);

    assert_eq!(our.unwrap().size(), 64);
}

#[test]
fn differs_a_device_that_is_not_the_buffers_is_not_noticed_there() {
    let cuda = |index| Device::new(DeviceType::Cuda, index);
    let fake = FakeDevice::new(DeviceType::Cuda, 2);
    let layout = DeviceLayout::new(64, 8).unwrap();
    let mut buffer = DeviceMemoryBuffer::create_with(Arc::new(fake.clone()), layout, 0).unwrap();
    let place = (buffer.ptr().addr(), buffer.size());

    let their = original::Planned::new(&[place], &[cuda(1)]).unwrap();
    let our = HierarchicalAllocator::new(vec![buffer.as_span_mut()], &[cuda(1)]).unwrap_err();

    assert_eq!(their.get_offset_address(0, 0, 64), Ok(place.0));
    assert!(our.is_device_mismatch());
}

#[test]
fn differs_a_free_that_fails_is_told_to_nobody_there() {
    let fake = FakeDevice::new(DeviceType::Cuda, 1);
    let faulty = Arc::new(FaultInjector::new(fake.clone()));
    let registry = DeviceAllocatorRegistry::new();
    registry.register(faulty.clone()).unwrap();
    let rig = Rig::with_registry(fake, Arc::new(registry));
    let layout = DeviceLayout::new(64, 8).unwrap();

    faulty.fail_nth(Operation::Deallocate, 1);
    drop(original::Buffer::create(64, CUDA, 0, 8).unwrap());
    // The function that frees returns nothing.
    assert_eq!(rig.fake.live_blocks(), 1);

    faulty.fail_nth(Operation::Deallocate, 1);
    let our = DeviceMemoryBuffer::create_with(faulty, layout, 0).unwrap();
    // An error for who asks, with the buffer, which can be freed again.
    let failed = our.free().unwrap_err();
    assert_eq!(rig.fake.live_blocks(), 2);
    drop(failed);
    assert_eq!(rig.fake.live_blocks(), 1);
}

#[test]
fn differs_an_allocator_is_replaced_here_while_its_memory_is_in_use() {
    // There, a second one for a type ends the process: see `aborts.rs`.
    let [old, new] = [(); 2].map(|()| FakeDevice::new(DeviceType::Cuda, 1));
    let registry = DeviceAllocatorRegistry::new();
    registry.register(Arc::new(old.clone())).unwrap();
    let layout = DeviceLayout::new(64, 8).unwrap();
    let create = || DeviceMemoryBuffer::create_in(&registry, layout, "cuda:0".parse().unwrap());
    let before = create().unwrap();

    registry.replace(Arc::new(new.clone())).unwrap();
    let after = create().unwrap();

    assert_eq!((old.live_blocks(), new.live_blocks()), (1, 1));
    drop(before);
    assert_eq!((old.live_blocks(), new.live_blocks()), (0, 1));
    drop(after);
    assert_eq!((old.live_blocks(), new.live_blocks()), (0, 0));
}

#[test]
fn differs_methods_with_devices_can_not_share_their_memory_there() {
    let rig = Rig::new();
    let name = file("add_cuda0");

    let their = on_memory_of_the_runtime(&name, true, |session| Ok(session.load("forward")));
    let their = their.unwrap();
    let bytes = std::fs::read(&name).unwrap();
    let plan = Program::parse(&bytes).unwrap().methods()[0].plan().unwrap();
    let our = PlannedMemory::allocate_shared(&[&plan, &plan], &rig.registry).unwrap();

    assert_eq!(their, Err(executorch::Error::NotSupported));
    assert_eq!((our.plan_count(), our.size_in_bytes()), (2, 32 + 48));
    drop(our);
    rig.assert_clean();
}

/// What the runtime says to inputs on the host.
fn run_from_the_host(name: &Path) -> std::result::Result<(), String> {
    on_memory_of_the_runtime(name, false, |session| {
        let inputs = session.inputs("forward", 1)?;
        session.run("forward", &inputs)?;
        Ok(())
    })
    .map_err(|failure| failure.to_string())
}

#[test]
fn differs_an_input_planned_on_a_device_can_not_be_set_from_the_host_there() {
    let rig = Rig::new();
    let name = file("add_legacy_cpu_arena");
    let bytes = std::fs::read(&name).unwrap();
    let program = Program::parse(&bytes).unwrap();
    let method = program.method("forward").unwrap();
    let mut memory = PlannedMemory::allocate(&method.plan().unwrap(), &rig.registry).unwrap();

    let their = run_from_the_host(&name);

    assert_eq!(their, Err("NotSupported".to_owned()));
    for (value, _) in method.inputs() {
        let mut planned = method.planned_tensors();
        let tensor = planned.find(|tensor| tensor.value() == value).unwrap();
        let mut view = memory.view().unwrap();
        let span = view.span_mut(tensor.placement()).unwrap();
        let spec = tensor.spec().unwrap();
        let mut bound = TensorViewMut::bind_in_host_memory(spec, span).unwrap();
        bound.copy_from_host(&[7; 16]).unwrap();
        assert_eq!(bound.as_view().to_vec().unwrap(), [7; 16]);
    }
    rig.assert_clean();
}

#[test]
fn differs_a_tensor_may_say_another_device_than_its_memory_there() {
    let rig = Rig::new();
    let name = file("add_legacy_cpu_arena");

    let loaded = on_memory_of_the_runtime(&name, false, |session| Ok(session.load("forward")));

    assert_eq!(loaded.unwrap(), Ok(()));
    let bytes = std::fs::read(&name).unwrap();
    let program = Program::parse(&bytes).unwrap();
    let method = program.method("forward").unwrap();
    let mut memory = PlannedMemory::allocate(&method.plan().unwrap(), &rig.registry).unwrap();
    let tensor = method.planned_tensors().next().unwrap();
    let mut view = memory.view().unwrap();
    let span = view.span_mut(tensor.placement()).unwrap();
    let bound = TensorViewMut::bind(tensor.spec().unwrap(), span).unwrap_err();
    assert!(bound.is_device_mismatch());
    rig.assert_clean();
}

#[test]
fn differs_a_host_address_is_taken_for_one_of_the_device_there() {
    let rig = Rig::new();

    // The inputs have no planned memory, so the runtime passes on what it is given.
    let their = run_from_the_host(&file("skip_h2d"));

    // It went all the way to the device, which found it out.
    assert_eq!(their, Err("Internal".to_owned()));
    let violations = rig.fake.violations();
    assert_eq!(violations.len(), 1);
    // Here it does not compile: a host slice is no view of a device.
}
