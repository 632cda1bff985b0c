//! What is loaded, and where it lies.

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::sync::Arc;

use device_memory::weights::{PlainUploader, WeightsHeader, WeightsLoader};
use device_memory::{
    Device, DeviceAllocatorRegistry, DeviceType, ErrorKind, InvalidWeights, MemoryPlan, Operation,
    Placement, PlannedBuffer, ScalarType, Tag,
};

use crate::support::{GPU, SMALL, bytes, check, file, load, rig};

#[test]
fn all_tensors_of_a_file_are_on_the_device() {
    let bytes = file(SMALL, 17);
    for device in [GPU, Device::new(DeviceType::Cuda, 1), Device::CPU] {
        let (fake, registry) = rig();

        let weights = load(&registry, &bytes, device).unwrap();

        check(&weights, &bytes);
        let head = weights.view("head").unwrap();
        assert_eq!(head.device(), device);
        assert_eq!(head.spec().scalar_type(), ScalarType::BFloat16);
        assert_eq!(head.spec().sizes(), [2, 3]);
        assert_eq!(weights.view("none").unwrap().span().len(), 0);
        drop(weights);
        fake.assert_clean();
    }
}

#[test]
fn buffers_of_their_own_hold_the_same() {
    let bytes = file(SMALL, 17);
    let (fake, registry) = rig();
    let (header, data) = WeightsHeader::parse(&bytes).unwrap();
    let plan = header.separate(GPU, 256).unwrap();

    let weights = WeightsLoader::new(&registry)
        .load(header, plan, data)
        .unwrap();

    check(&weights, &bytes);
    assert_eq!(fake.allocations(), 2, "the empty one has no memory");
    assert!(weights.span("tail").unwrap().ptr().is_aligned_to(256));
}

#[test]
fn every_allocation_is_tagged_as_weights() {
    let bytes = file(SMALL, 17);
    let (fake, registry) = rig();

    let _weights = load(&registry, &bytes, GPU).unwrap();

    let tags: Vec<_> = fake.live().iter().map(|block| block.layout.tag()).collect();
    assert_eq!(tags, [Tag::WEIGHTS]);
}

#[test]
fn a_file_is_loaded_by_its_path() {
    let bytes = file(SMALL, 17);
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), &bytes).unwrap();
    let (_, registry) = rig();

    let weights = WeightsLoader::new(&registry)
        .load_file(path.path(), GPU)
        .unwrap();

    check(&weights, &bytes);
}

#[test]
fn a_file_without_tensors_is_loaded() {
    let (fake, registry) = rig();
    let mut told = Vec::new();
    let bytes = file("{}", 0);
    let (header, data) = WeightsHeader::parse(&bytes).unwrap();
    let plan = header.arena(GPU, 64).unwrap();

    let mut progress = |done, total| told.push((done, total));
    let weights = WeightsLoader::new(&registry)
        .with_progress(&mut progress)
        .load(header, plan, data)
        .unwrap();

    assert_eq!(weights.header().tensors(), []);
    assert_eq!(weights.memory().size_in_bytes(), 0);
    assert_eq!(told, [(0, 0)]);
    assert_eq!(fake.allocations(), 0);
}

#[test]
fn a_tensor_that_there_is_not_is_an_error_by_name() {
    let (_, registry) = rig();
    let weights = load(&registry, &file(SMALL, 17), GPU).unwrap();

    for error in [
        weights.view("heat").unwrap_err(),
        weights.span("heat").unwrap_err(),
    ] {
        assert!(matches!(
            error.kind(),
            ErrorKind::InvalidWeights(InvalidWeights::NoSuchTensor { .. })
        ));
        assert_eq!(error.to_string(), "no tensor \"heat\" among the weights");
    }
}

#[test]
fn an_arena_is_uploaded_at_once_with_zeros_in_its_gaps() {
    let bytes = file(SMALL, 17);
    let (fake, registry) = rig();

    let weights = load(&registry, &bytes, GPU).unwrap();

    let copies = fake.calls();
    let copies = copies
        .iter()
        .filter(|call| call.operation == Operation::CopyHostToDevice);
    assert_eq!(copies.count(), 1);
    let arena = weights.memory().buffers()[0].to_vec().unwrap();
    assert_eq!(arena[12..64], [0; 52]);
    assert_eq!(arena.len(), 69);
}

#[test]
fn a_piece_is_copied_while_there_is_more_to_read() {
    let bytes = file(SMALL, 17);
    let (fake, registry) = rig();
    let (header, data) = WeightsHeader::parse(&bytes).unwrap();
    let plan = header.arena(GPU, 64).unwrap();
    let mut uploader = PlainUploader::new(NonZeroUsize::new(7).unwrap());
    let mut told = Vec::new();
    let mut progress = |done, total| told.push((done, total));

    let weights = WeightsLoader::new(&registry)
        .with_uploader(&mut uploader)
        .with_progress(&mut progress)
        .load(header, plan, data)
        .unwrap();

    check(&weights, &bytes);
    let copies = fake.calls();
    let copies = copies
        .iter()
        .filter(|call| call.operation == Operation::CopyHostToDevice);
    assert_eq!(copies.count(), 10, "69 bytes in pieces of 7");
    assert_eq!(
        told,
        [7, 12, 12, 12, 12, 12, 12, 12, 12, 17].map(|done| (done, 17)),
        "gaps do not count"
    );
}

/// Two buffers on two devices, in neither of which the tensors are in order.
fn scattered() -> (String, MemoryPlan) {
    let mut json = String::from("{");
    for (index, begin) in (0..60).step_by(10).enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let end = begin + 10;
        json += &format!(
            r#"{comma}"t{index}":{{"dtype":"U8","shape":[10],"data_offsets":[{begin},{end}]}}"#
        );
    }
    let place = |id, offset| Placement::new(id, offset, 10);
    let plan = MemoryPlan::new(
        vec![
            PlannedBuffer::new(GPU, 64),
            PlannedBuffer::new(Device::new(DeviceType::Cuda, 1), 40),
        ],
        vec![
            place(0, 20),
            place(0, 0),
            place(0, 50),
            place(1, 30),
            place(1, 0),
            place(0, 30),
        ],
    );
    (json + "}", plan.unwrap())
}

#[test]
fn a_plan_of_the_callers_own_may_scatter_tensors_over_devices() {
    let (json, plan) = scattered();
    let bytes = file(&json, 60);
    let (fake, registry) = rig();
    let (header, data) = WeightsHeader::parse(&bytes).unwrap();

    let weights = WeightsLoader::new(&registry)
        .load(header, plan, data)
        .unwrap();

    check(&weights, &bytes);
    assert_eq!(weights.view("t3").unwrap().device().to_string(), "cuda:1");
    drop(weights);
    fake.assert_clean();
}

#[test]
fn a_plan_that_is_not_of_the_file_is_refused_before_anything_is_allocated() {
    let bytes = file(SMALL, 17);
    let (header, _) = WeightsHeader::parse(&bytes).unwrap();
    let buffers = || vec![PlannedBuffer::new(GPU, 64)];
    let place = |offset, size| Placement::new(0, offset, size);
    let refused = |placements| {
        let (fake, registry) = rig();
        let plan = MemoryPlan::new(buffers(), placements).unwrap();
        let error = WeightsLoader::new(&registry)
            .load(header.clone(), plan, io::repeat(1))
            .unwrap_err();
        assert_eq!(fake.calls().len(), 0);
        error.to_string()
    };

    assert_eq!(
        refused(vec![place(0, 12)]),
        "count mismatch: expected 3 placements, found 1"
    );
    assert_eq!(
        refused(vec![place(0, 12), place(0, 0), place(12, 4)]),
        "placement 2: length mismatch on cuda:0: expected 5 bytes, found 4"
    );
    assert_eq!(
        refused(vec![place(4, 12), place(5, 0), place(0, 5)]),
        "ranges 0 and 2 overlap"
    );
}

#[test]
fn the_source_is_read_no_further_than_the_last_tensor() {
    let bytes = file(SMALL, 40);
    let (_, registry) = rig();
    let mut rest = bytes.as_slice();
    let header = WeightsHeader::read(&mut rest).unwrap();
    let plan = header.arena(GPU, 64).unwrap();

    WeightsLoader::new(&registry)
        .load(header, plan, &mut rest)
        .unwrap();

    assert_eq!(rest.len(), 23);
}

/// Gives a byte at a time, with an interruption before each.
struct Trickle<'a>(&'a [u8], bool);

impl Read for Trickle<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let most = into.len().min(1);
        self.0.read(&mut into[..most])
    }
}

#[test]
fn a_reader_may_give_little_at_a_time() {
    let bytes = file(SMALL, 17);
    for device in [GPU, Device::CPU] {
        let (_, registry) = rig();
        let mut trickle = Trickle(&bytes, false);
        let header = WeightsHeader::read(&mut trickle).unwrap();
        let plan = header.arena(device, 64).unwrap();

        let weights = WeightsLoader::new(&registry)
            .load(header, plan, trickle)
            .unwrap();

        check(&weights, &bytes);
    }
}

/// Says that it read more than there was room for.
struct Liar;

impl Read for Liar {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(into.len() + 1)
    }
}

#[test]
fn a_reader_that_lies_is_an_error() {
    let file = file(SMALL, 17);
    let (header, _) = WeightsHeader::parse(&file).unwrap();
    let (fake, registry) = rig();
    let plan = header.arena(GPU, 64).unwrap();

    let error = WeightsLoader::new(&registry)
        .load(header, plan, Liar)
        .unwrap_err();

    assert_eq!(
        error.to_string(),
        "copy from host to device on cuda:0 failed: the reader says that it read more than it could"
    );
    assert_eq!(fake.live_blocks(), 0);
}

#[test]
fn weights_are_read_from_many_threads() {
    let bytes = file(SMALL, 17);
    let (_, registry) = rig();
    let weights = Arc::new(load(&registry, &bytes, GPU).unwrap());

    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check(&weights, &bytes));
        }
    });
}

#[test]
fn a_device_without_an_allocator_is_an_error() {
    let bytes = file(SMALL, 17);
    let registry = DeviceAllocatorRegistry::new();

    let error = load(&registry, &bytes, "custom9:0".parse().unwrap()).unwrap_err();

    assert!(error.is_not_registered(), "{error}");
}

#[test]
fn a_large_file_arrives_whole_whatever_the_pieces() {
    let data = 3 * (1 << 20) + 17;
    let json = format!(r#"{{"a":{{"dtype":"U8","shape":[{data}],"data_offsets":[0,{data}]}}}}"#);
    let file = file(&json, data);
    let (_, registry) = rig();

    let weights = load(&registry, &file, GPU).unwrap();

    assert!(weights.span("a").unwrap().to_vec().unwrap() == bytes(data));
}
