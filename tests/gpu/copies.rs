//! Copies, fills and alignments.

use device_memory::{DeviceLayout, ErrorKind};

use crate::support::{Gpu, KIB, MIB, aligned, assert_same, bytes, empty, filled};

/// None, one, odd ones, and around the sizes at which drivers change their ways.
const SIZES: [usize; 13] = [
    0,
    1,
    3,
    255,
    257,
    4095,
    4097,
    64 * KIB - 1,
    64 * KIB,
    64 * KIB + 1,
    MIB + 7,
    64 * MIB - 1,
    64 * MIB,
];

#[test]
fn bytes_of_every_size_come_back_as_they_went() {
    let Some(gpu) = Gpu::open() else { return };
    for size in SIZES {
        let sent = bytes(size, 1);

        let buffer = filled(&gpu.allocator, &sent, 0);
        let clone = buffer.try_clone().unwrap();

        assert_same(&buffer.to_vec().unwrap(), &sent, "device to host");
        drop(buffer);
        assert_same(&clone.to_vec().unwrap(), &sent, "device to device");
    }
}

#[test]
fn parts_are_copied_and_filled_and_the_rest_is_left_alone() {
    let Some(gpu) = Gpu::open() else { return };
    let mut buffer = empty(&gpu.allocator, MIB + 1, 0);
    let mut expected = vec![0x11; MIB + 1];

    buffer.fill(0x11).unwrap();
    for (at, len) in [(0, 1), (3, 5), (4093, 4099), (MIB / 2 + 1, 70_001)] {
        let part = bytes(len, 7);
        buffer.copy_from_host_at(at, &part).unwrap();
        expected[at..at + len].copy_from_slice(&part);
    }
    let mut tail = buffer.as_span_mut().into_subspan(MIB - 2, 3).unwrap();
    tail.fill(0x22).unwrap();
    expected[MIB - 2..].fill(0x22);

    assert_same(&buffer.to_vec().unwrap(), &expected, "all of it");
    let mut middle = [0; 9];
    buffer.copy_to_host_at(4090, &mut middle).unwrap();
    assert_same(&middle, &expected[4090..4099], "a part");
}

#[test]
fn a_range_is_copied_to_another_of_the_same_buffer() {
    let Some(gpu) = Gpu::open() else { return };
    let sent = bytes(2 * MIB, 3);
    let mut buffer = filled(&gpu.allocator, &sent, 0);

    let (front, mut back) = buffer.as_span_mut().into_split_at(MIB).unwrap();
    back.copy_from(front.as_span()).unwrap();

    let expected = [&sent[..MIB], &sent[..MIB]].concat();
    assert_same(&buffer.to_vec().unwrap(), &expected, "both halves");
}

#[test]
fn every_alignment_up_to_1_mib_is_given() {
    let Some(gpu) = Gpu::open() else { return };
    let mut kept = Vec::new();
    for log2 in 0..=20 {
        for size in [1, 4097] {
            let layout = DeviceLayout::new(size, 1 << log2).unwrap();
            let sent = bytes(size, log2);

            let mut buffer = aligned(&gpu.allocator, layout, 0);
            buffer.copy_from_host(&sent).unwrap();

            assert!(buffer.ptr().is_aligned_to(1 << log2), "{layout:?}");
            kept.push((buffer, sent));
        }
    }
    for (buffer, sent) in &kept {
        assert_same(&buffer.to_vec().unwrap(), sent, "an aligned block");
    }
}

#[test]
fn a_copy_past_the_end_is_refused_and_changes_nothing() {
    let Some(gpu) = Gpu::open() else { return };
    let mut buffer = filled(&gpu.allocator, &[5; 64], 0);

    let error = buffer.copy_from_host_at(60, &[6; 5]).unwrap_err();

    assert!(
        matches!(error.kind(), ErrorKind::OutOfBounds { .. }),
        "{error}"
    );
    assert_eq!(buffer.to_vec().unwrap(), [5; 64]);
}
