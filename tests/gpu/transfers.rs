//! Copies that go on while the test does something else.

use std::io::Read;
use std::num::NonZeroUsize;
use std::sync::Arc;

use device_memory::DeviceMemoryBuffer;
use device_memory::backend::cuda::{
    CudaHostAllocator, StagedUploader, download, transfer_scope, upload,
};

use crate::gate::Gate;
use crate::support::{Gpu, MIB, assert_same, bytes, empty, filled, note, skip, stream};

/// Page-locked memory with these bytes.
fn page_locked(bytes: &[u8]) -> DeviceMemoryBuffer {
    let mut buffer = empty(&CudaHostAllocator::open().unwrap(), bytes.len(), 0);
    buffer.as_slice_mut().unwrap().copy_from_slice(bytes);
    buffer
}

#[test]
fn a_scope_goes_on_while_the_stream_copies_and_waits_at_its_end() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = stream(0);
    let sent = bytes(16 * MIB, 1);
    let host = page_locked(&sent);
    let mut device = filled(&gpu.allocator, &vec![0; sent.len()], 0);
    let mut back = page_locked(&vec![0; sent.len()]);
    let gate = Gate::close(&stream);

    let held = transfer_scope(&stream, |scope| {
        scope.copy_to_device(device.as_span_mut(), host.as_slice()?)?;
        let held = gate.holds();
        gate.open();
        Ok(held)
    })
    .unwrap();
    transfer_scope(&stream, |scope| {
        scope.copy_to_host(back.as_slice_mut()?, device.as_span())
    })
    .unwrap();

    assert!(held, "starting the copy waited for it");
    assert_same(back.as_slice().unwrap(), &sent, "there and back");
}

#[test]
fn copies_of_two_streams_overlap() {
    let Some(gpu) = Gpu::open() else { return };
    let [slow, fast] = [stream(0), stream(0)];
    let [first, second] = [bytes(4 * MIB, 1), bytes(4 * MIB, 2)];
    let hosts = [page_locked(&first), page_locked(&second)];
    let mut devices = [(); 2].map(|()| filled(&gpu.allocator, &vec![0; 4 * MIB], 0));
    let mut back = page_locked(&vec![0; 4 * MIB]);
    let [one, two] = &mut devices;
    let gate = Gate::close(&slow);

    let held = transfer_scope(&slow, |outer| {
        outer.copy_to_device(one.as_span_mut(), hosts[0].as_slice()?)?;
        transfer_scope(&fast, |inner| {
            inner.copy_to_device(two.as_span_mut(), hosts[1].as_slice()?)
        })?;
        transfer_scope(&fast, |inner| {
            inner.copy_to_host(back.as_slice_mut()?, two.as_span())
        })?;
        let held = gate.holds();
        gate.open();
        Ok(held)
    })
    .unwrap();

    assert!(held, "the second stream waited for the first");
    assert_same(back.as_slice().unwrap(), &second, "the second");
    assert_same(&devices[0].to_vec().unwrap(), &first, "the first");
}

#[test]
fn memory_that_is_not_page_locked_is_copied_by_a_scope_as_well() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = stream(0);
    let sent = bytes(4 * MIB + 1, 3);
    let mut devices = [(); 2].map(|()| empty(&gpu.allocator, sent.len(), 0));
    let [first, second] = &mut devices;
    let mut back = vec![0; sent.len()];

    transfer_scope(&stream, |scope| {
        scope.copy_to_device(first.as_span_mut(), &sent)
    })
    .unwrap();
    transfer_scope(&stream, |scope| {
        scope.copy_device_to_device(second.as_span_mut(), first.as_span())
    })
    .unwrap();
    transfer_scope(&stream, |scope| {
        scope.copy_to_host(&mut back, second.as_span())
    })
    .unwrap();

    assert_same(&back, &sent, "there and back");
}

#[test]
fn buffers_that_are_moved_in_come_back_when_the_copy_is_done() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = stream(0);
    let sent = bytes(16 * MIB, 4);
    let host = page_locked(&sent);
    let device = empty(&gpu.allocator, sent.len(), 0);
    let gate = Gate::close(&stream);

    let transfer = upload(&stream, host, device).unwrap();
    let (held, complete) = (gate.holds(), transfer.is_complete().unwrap());
    gate.open();
    let (mut host, device) = transfer.wait().unwrap();
    host.as_slice_mut().unwrap().fill(0);
    let (host, device) = download(&stream, host, device).unwrap().wait().unwrap();

    assert!(held, "starting the copy waited for it");
    assert!(!complete);
    assert_same(host.as_slice().unwrap(), &sent, "there and back");
    assert_same(&device.to_vec().unwrap(), &sent, "on the device");
}

#[test]
fn a_transfer_that_is_dropped_waits_before_it_frees() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = stream(0);
    for round in 0..20 {
        let host = page_locked(&vec![round; 4 * MIB]);
        let device = empty(&gpu.allocator, host.size(), 0);

        drop(upload(&stream, host, device).unwrap());
        let next = filled(&gpu.allocator, &vec![round + 1; 4 * MIB], 0);

        let expected = vec![round + 1; 4 * MIB];
        assert_same(&next.to_vec().unwrap(), &expected, "the next block");
    }
}

/// Bytes that are made as they are read, and as many as anybody wants.
struct Numbers {
    next: u64,
    rest: Vec<u8>,
}

impl Read for Numbers {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = bytes(MIB, self.next);
            self.next += 1;
        }
        let len = into.len().min(self.rest.len());
        into[..len].copy_from_slice(&self.rest[..len]);
        self.rest.drain(..len);
        Ok(len)
    }
}

#[test]
fn a_quarter_of_a_gibibyte_is_uploaded_through_two_buffers() {
    let Some(gpu) = Gpu::open() else { return };
    let stream = stream(0);
    let staging = Arc::new(CudaHostAllocator::open().unwrap());
    let size = 256 * MIB;
    let mut weights = empty(&gpu.allocator, size + 2 * MIB, 0);
    weights.fill(0xEE).unwrap();
    for piece in [8 * MIB, 5_000_003] {
        let piece = NonZeroUsize::new(piece).unwrap();
        let mut uploader = StagedUploader::new(&stream, Arc::clone(&staging), piece).unwrap();
        let source = Numbers {
            next: 0,
            rest: Vec::new(),
        };
        let (mut last, mut calls) = (0, 0);

        let part = weights.as_span_mut().into_subspan(MIB, size).unwrap();
        uploader
            .upload(part, source, |done, total| {
                assert!(last <= done && done <= total);
                (last, calls) = (done, calls + 1);
            })
            .unwrap();

        assert_eq!(last, u64::try_from(size).unwrap());
        note(&format!("{calls} calls for pieces of {piece} bytes"));
        let mut found = vec![0; MIB];
        for (at, seed) in (1..=256).zip(0..) {
            weights.copy_to_host_at(at * MIB, &mut found).unwrap();
            assert_same(&found, &bytes(MIB, seed), "a mebibyte of it");
        }
        for at in [0, size + MIB] {
            weights.copy_to_host_at(at, &mut found).unwrap();
            assert_same(&found, &vec![0xEE; MIB], "around it");
        }
    }
}

#[test]
fn a_scope_copies_between_two_devices() {
    let Some(gpu) = Gpu::open() else { return };
    if gpu.count() < 2 {
        return skip("one device only");
    }
    let sent = bytes(16 * MIB + 1, 5);
    for at in [0, 1] {
        let stream = stream(at);
        let source = filled(&gpu.allocator, &sent, 0);
        let mut target = filled(&gpu.allocator, &vec![0; sent.len()], 1);
        let mut back = empty(&gpu.allocator, sent.len(), 0);

        transfer_scope(&stream, |scope| {
            scope.copy_device_to_device(target.as_span_mut(), source.as_span())
        })
        .unwrap();
        transfer_scope(&stream, |scope| {
            scope.copy_device_to_device(back.as_span_mut(), target.as_span())
        })
        .unwrap();

        assert_same(&back.to_vec().unwrap(), &sent, "there and back");
    }
}
