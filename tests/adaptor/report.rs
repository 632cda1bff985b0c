//! Each layer that knows something says it, in one line.

use std::sync::Arc;

use device_memory::adaptor::{Aligned, Arena, Limit, Log, Poison, Retry, Statistics, Tracking};
use device_memory::testing::FakeDevice;
use device_memory::{Attempt, DeviceLayout, DeviceMemoryBuffer, DeviceType, Tag};

// https://github.com/EricLBuehler/mistral.rs/issues/1446
// https://github.com/rapidsai/rmm/issues/1134
#[test]
fn a_deep_stack_reports_on_one_line() {
    let device = FakeDevice::builder(DeviceType::Cuda)
        .capacity(10_000)
        .build();
    let limit = Limit::over(device, 8192);
    let arena = Arena::over(Statistics::over(limit), 4096);
    let aligned = Aligned::over(Log::csv(arena, std::io::sink()), 256).unwrap();
    let stack = Arc::new(Tracking::over(Retry::over(aligned, |_| false)));
    let layout = |size| {
        let layout = DeviceLayout::from_size(size).unwrap();
        layout.with_tag(Tag::KV_CACHE)
    };
    let kept = DeviceMemoryBuffer::create_with(stack.clone(), layout(3000), 0).unwrap();

    let error = DeviceMemoryBuffer::create_with(stack, layout(5000), 0).unwrap_err();

    assert_eq!(
        error.to_string(),
        "out of memory on cuda:0: 5000 bytes requested (align 64, tag kv_cache), 3000 in use, \
         4096 reserved, limit 8192, largest free block 1096; tried search, upstream, trim, hook"
    );
    let report = error.out_of_memory().unwrap();
    assert_eq!(report.tag, Tag::KV_CACHE);
    assert_eq!(report.tried.last(), Some(&Attempt::Hook));
    drop(kept);
}

#[test]
fn layers_that_ask_for_more_report_what_was_asked_of_them() {
    let device = FakeDevice::builder(DeviceType::Cuda).capacity(1000).build();
    let stack = Poison::over(
        Aligned::over(device, 4096)
            .unwrap()
            .native_align(64)
            .unwrap(),
    );
    let layout = DeviceLayout::new(10, 8).unwrap();

    let error = DeviceMemoryBuffer::create_with(Arc::new(stack), layout, 0).unwrap_err();

    let report = error.out_of_memory().unwrap();
    assert_eq!((report.requested, report.align), (10, 8));
    assert_eq!(
        (report.device_free, report.device_total),
        (Some(1000), Some(1000))
    );
}
