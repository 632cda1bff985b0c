//! Requests of all kinds.

use std::ops::Range;

use device_memory::plan::{DeviceOptions, Gap, PlanOptions, PlanRequest, PlanValue};
use device_memory::{Device, Tag};
use proptest::prelude::*;

use super::CUDA;

/// Values of all kinds, of which some requests can be made.
fn any_value() -> impl Strategy<Value = PlanValue> {
    let tags = [
        Tag::NONE,
        Tag::WEIGHTS,
        Tag::SCRATCH,
        Tag::SCRATCH.persistent(),
    ];
    let life = (0_usize..9, 0_usize..9);
    let pool = prop::sample::select(vec![0_u32, 0, 0, 1, 2]);
    let fixed = prop::option::weighted(0.3, 0_usize..40);
    let place = (pool, prop::bool::weighted(0.3), fixed);
    let align = prop_oneof![8 => 0_u32..6, 1 => 6_u32..30];
    let more = (
        prop::option::of("[ -~]{0,6}"),
        prop::sample::select(tags.to_vec()),
        prop::option::of((0_usize..4, prop::option::of(0_usize..300))),
        prop::option::of((0_usize..6, 0_usize..200)),
    );
    (0_usize..300, align, life, place, more).prop_map(
        |(size, align, (first, len), (pool, on_cuda, fixed), (name, tag, gap, alias))| {
            let mut value = PlanValue::new(size, first..=first + len);
            value = value.aligned(1 << align).in_pool(pool).tagged(tag);
            value.name = name;
            value.fixed_offset = fixed.map(|units| units * 64);
            if on_cuda {
                value = value.on(CUDA);
            }
            if let Some((of, offset)) = alias {
                value = value.alias_of(of, offset);
            }
            if let Some((into, window)) = gap {
                let steps = first + into.min(len)..=first + len;
                let window = window.map(|bytes| bytes.min(size) / 2..bytes.min(size));
                value = value.with_gap(Gap { steps, window });
            }
            value
        },
    )
}

/// A request with up to so many values on two devices that can be planned, and those
/// that can not for a value that was then left out.
pub(crate) fn any_request(
    count: Range<usize>,
) -> impl Strategy<Value = (PlanRequest, Vec<PlanRequest>)> {
    let values = prop::collection::vec(any_value(), count);
    let options = prop::array::uniform2((0_u32..8, 0_usize..99));
    let reserved = prop::option::of((any::<bool>(), 0_u32..3, 0_usize..999));
    (values, options, reserved).prop_map(|(values, options, reserved)| {
        let [default, cuda] =
            options.map(|(align, padding)| DeviceOptions::aligned(1 << align).padding(padding));
        let mut request = PlanRequest::new();
        request.set_default(default);
        request.set_device(CUDA, cuda);
        if let Some((on_cuda, pool, size)) = reserved {
            request.reserve(if on_cuda { CUDA } else { Device::CPU }, pool, size);
        }
        let mut refused = Vec::new();
        for value in values {
            let mut more = request.clone();
            more.push(value);
            match more.plan(&PlanOptions::default().nodes(0)) {
                Ok(_) => request = more,
                Err(_) => refused.push(more),
            }
        }
        (request, refused)
    })
}
