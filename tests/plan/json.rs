//! Requests and plans as JSON.

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use device_memory::plan::{DeviceOptions, Gap, PlanOptions, PlanRequest, PlanValue, check};
use device_memory::{Device, MemoryPlan, Placement, PlannedBuffer, Tag};

use super::CUDA;
use super::requests::any_request;

fn read<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_str(&value.to_string()).map_err(|error| error.to_string())
}

fn written(what: &impl Serialize) -> Value {
    serde_json::to_value(what).unwrap()
}

/// A request that has something of everything.
fn full() -> PlanRequest {
    let gap = |steps, window| Gap { steps, window };
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16).padding(32));
    request.set_device(CUDA, DeviceOptions::aligned(256).capacity(1 << 20));
    request.reserve(CUDA, 1, 512);
    request.push(
        PlanValue::new(64, 0..=9)
            .named("state")
            .with_gap(gap(1..=2, None))
            .with_gap(gap(4..=4, Some(8..16))),
    );
    let weights = PlanValue::new(4096, 0..=3).on(CUDA).in_pool(1).aligned(512);
    let weights = request.push(weights.at_offset(1024).tagged(Tag::WEIGHTS));
    let view = PlanValue::new(16, 2..=5).on(CUDA).in_pool(1);
    request.push(view.alias_of(weights, 32));
    request
}

#[test]
fn a_request_is_written_in_plain_words() {
    let request = full();

    assert_eq!(
        written(&request),
        json!({
            "values": [
                {"name": "state", "size": 64, "first_use": 0, "last_use": 9,
                 "gaps": [{"steps": [1, 2]}, {"steps": [4, 4], "window": [8, 16]}]},
                {"size": 4096, "align": 512, "first_use": 0, "last_use": 3,
                 "device": "cuda:0", "pool": 1, "fixed_offset": 1024,
                 "tag": {"name": "weights", "persistent": true}},
                {"size": 16, "first_use": 2, "last_use": 5, "device": "cuda:0", "pool": 1,
                 "alias": {"of": 1, "offset": 32}},
            ],
            "default": {"align": 16, "padding": 32},
            "devices": [{"device": "cuda:0", "options": {"align": 256, "capacity": 1_048_576}}],
            "reserved": [{"device": "cuda:0", "pool": 1, "size": 512}],
        })
    );
    assert_eq!(read(&written(&request)), Ok(request));
}

#[test]
fn a_plan_is_written_in_plain_words() {
    let aligned = PlannedBuffer {
        align: 256,
        ..PlannedBuffer::new(CUDA, 48)
    };
    let buffers = vec![PlannedBuffer::new(Device::CPU, 32), aligned];
    let placements = vec![Placement::new(0, 16, 16), Placement::new(1, 32, 16)];
    let plan = MemoryPlan::new(buffers, placements).unwrap();

    assert_eq!(
        written(&plan),
        json!({
            "buffers": [{"size": 32}, {"device": "cuda:0", "size": 48, "align": 256}],
            "placements": [
                {"memory_id": 0, "offset": 16, "size": 16},
                {"memory_id": 1, "offset": 32, "size": 16},
            ],
        })
    );
    assert_eq!(read(&written(&plan)), Ok(plan));
}

#[test]
fn what_need_not_be_said_is_what_the_constructors_choose() {
    let read: PlanRequest =
        read(&json!({"values": [{"size": 8, "first_use": 1, "last_use": 2}]})).unwrap();

    let mut built = PlanRequest::new();
    built.push(PlanValue::new(8, 1..=2));
    assert_eq!(read, built);
}

#[test]
fn tags_are_those_of_the_process_and_none_is_made() {
    let tagged =
        |tag: Value| json!({"values": [{"size": 8, "first_use": 1, "last_use": 2, "tag": tag}]});
    let unknown = tagged(json!({"name": "adapter"}));
    assert_eq!(
        read::<PlanRequest>(&unknown).unwrap_err(),
        "value 0: no tag of this process is named \"adapter\""
    );
    assert_eq!(Tag::find("adapter"), None);

    let made = Tag::named("adapter").unwrap();

    let once: PlanRequest = read(&unknown).unwrap();
    assert_eq!(once.values()[0].tag, made);
    let kept: PlanRequest = read(&tagged(json!({"name": "adapter", "persistent": true}))).unwrap();
    assert_eq!(kept.values()[0].tag, made.persistent());
    assert_eq!(read(&written(&kept)), Ok(kept));
}

/// Why a request is refused after one change.
fn request_with(change: impl FnOnce(&mut Value)) -> String {
    let mut request = written(&full());
    change(&mut request);
    read::<PlanRequest>(&request).unwrap_err()
}

/// Why a plan is refused after one change.
fn plan_with(change: impl FnOnce(&mut Value)) -> String {
    let mut plan = json!({
        "buffers": [{"size": 32}],
        "placements": [{"memory_id": 0, "offset": 16, "size": 16}],
    });
    assert!(read::<MemoryPlan>(&plan).is_ok());
    change(&mut plan);
    read::<MemoryPlan>(&plan).unwrap_err()
}

#[test]
fn what_is_no_request_is_refused_with_a_reason() {
    for (found, expected) in [
        (
            request_with(|r| r["values"][0]["last_use"] = json!(-1)),
            "invalid value: integer `-1`",
        ),
        (
            request_with(|r| r["values"][1]["first_use"] = json!(4)),
            "life of value 1 is reversed: first use 4, last use 3",
        ),
        (
            request_with(|r| r["values"][1]["align"] = json!(24)),
            "invalid alignment 24 of value 1: not a power of two",
        ),
        (
            request_with(|r| r["values"][1]["align"] = json!(0)),
            "invalid alignment 0 of value 1: not a power of two",
        ),
        (
            request_with(|r| r["values"][1]["device"] = json!("gpu")),
            "value 1: unknown device type \"gpu\"",
        ),
        (
            request_with(|r| r["values"][1]["fixed_offset"] = json!(1000)),
            "fixed offset 1000 of value 1 is not aligned to 512",
        ),
        (
            request_with(|r| r["values"][1]["fixed_offset"] = json!(0)),
            "fixed offset 0 of value 1 overlaps reserved bytes",
        ),
        (
            request_with(|r| r["values"][2]["alias"]["of"] = json!(7)),
            "value 2 can not use the storage of value 7: there is no such value",
        ),
        (
            request_with(|r| r["values"][2]["alias"]["of"] = json!(2)),
            "value 2 can not use the storage of value 2: they use the storage of each other",
        ),
        (
            request_with(|r| r["values"][2]["alias"]["offset"] = json!(u64::MAX)),
            "it passes the end",
        ),
        (
            request_with(|r| r["values"][2]["pool"] = json!(1024)),
            "pool 1024 of value 2 is too high",
        ),
        (
            request_with(|r| r["values"][0]["gaps"][0]["steps"] = json!([2, 1])),
            "invalid gap 0 of value 0: its steps are not within the life of the value",
        ),
        (
            request_with(|r| r["values"][0]["gaps"][0]["steps"] = json!([2, 4])),
            "invalid gap 1 of value 0: it begins before the one before it ends",
        ),
        (
            request_with(|r| r["values"][0]["gaps"][1]["window"] = json!([8, 65])),
            "invalid gap 1 of value 0: its window is not within the value",
        ),
        (
            request_with(|r| r["values"][0]["gaps"][1]["window"] = json!([8, 16, 24])),
            "trailing characters",
        ),
        (
            request_with(|r| r["values"][0]["size"] = json!(u64::MAX)),
            "plan needs more bytes on cpu:0 than can be addressed",
        ),
        (
            request_with(|r| r["default"]["align"] = json!(3)),
            "invalid alignment 3 of cpu:0: not a power of two",
        ),
        (
            request_with(|r| {
                r["devices"] = json!([
                    {"device": "cuda", "options": {}}, {"device": "cuda:0", "options": {}},
                ])
            }),
            "options of cuda:0 are there twice",
        ),
        (
            request_with(|r| r["reserved"][0]["size"] = json!(u64::MAX)),
            "plan needs more bytes on cuda:0 than can be addressed",
        ),
        (
            request_with(|r| r["values"][0]["lower"] = json!(1)),
            "unknown field `lower`",
        ),
        (
            request_with(|r| r["values"][0] = json!({"size": 1, "first_use": 0})),
            "missing field `last_use`",
        ),
        (request_with(|r| *r = json!({})), "missing field `values`"),
        (request_with(|r| *r = json!(7)), "invalid type: integer `7`"),
    ] {
        assert!(found.contains(expected), "{found:?} lacks {expected:?}");
    }
}

#[test]
fn what_is_no_plan_is_refused_with_a_reason() {
    for (found, expected) in [
        (
            plan_with(|p| p["placements"][0]["offset"] = json!(17)),
            "placement 0: ",
        ),
        (
            plan_with(|p| p["placements"][0]["offset"] = json!(u64::MAX)),
            "placement 0: ",
        ),
        (
            plan_with(|p| p["placements"][0]["memory_id"] = json!(1)),
            "placement 0: ",
        ),
        (
            plan_with(|p| p["buffers"][0]["align"] = json!(48)),
            "buffer 0: ",
        ),
        (
            plan_with(|p| p["buffers"][0]["size"] = json!(u64::MAX)),
            "buffer 0: ",
        ),
        (
            plan_with(|p| p["buffers"][0]["device"] = json!("cpu:x")),
            "buffer 0: invalid device index \"x\"",
        ),
        (
            plan_with(|p| p["placements"][0]["memory_id"] = json!(1_u64 << 32)),
            "invalid value: integer `4294967296`",
        ),
        (
            plan_with(|p| p["arenas"] = json!([])),
            "unknown field `arenas`",
        ),
    ] {
        assert!(found.contains(expected), "{found:?} lacks {expected:?}");
    }
}

#[test]
fn nesting_without_end_is_refused() {
    let deep = "[".repeat(100_000);

    assert!(serde_json::from_str::<PlanRequest>(&deep).is_err());
    assert!(serde_json::from_str::<MemoryPlan>(&deep).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_request_that_can_be_planned_is_read_as_it_was_written(
        (request, refused) in any_request(0..6),
    ) {
        for refused in refused {
            prop_assert!(read::<PlanRequest>(&written(&refused)).is_err());
        }
        let planned = request.plan(&PlanOptions::default().nodes(0)).unwrap().plan;

        prop_assert_eq!(read(&written(&request)), Ok(request));
        prop_assert_eq!(read(&written(&planned)), Ok(planned));
    }

    #[test]
    fn any_change_of_one_number_is_read_or_refused(
        place in any::<prop::sample::Index>(),
        number in prop::sample::select(vec![0_u64, 1, 2, 3, 5, 8, 200, u64::MAX]),
    ) {
        let text = written(&full()).to_string();
        let digits: Vec<usize> = text
            .char_indices()
            .filter(|(_, c)| c.is_ascii_digit())
            .map(|(at, _)| at)
            .collect();
        let at = digits[place.index(digits.len())];

        let changed = format!("{}{number}{}", &text[..at], &text[at + 1..]);

        // Whatever is read is valid: it is planned, or found too large for a capacity.
        if let Ok(request) = serde_json::from_str::<PlanRequest>(&changed) {
            match request.plan(&PlanOptions::default().nodes(0)) {
                Ok(report) => check(&request, &report.plan).unwrap(),
                Err(error) => prop_assert!(error.to_string().contains("do not fit"), "{}", error),
            }
        }
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in "[a-z_0-9,:\"\\{\\}\\[\\]\\- ]{0,80}") {
        let _ = serde_json::from_str::<PlanRequest>(&text);
        let _ = serde_json::from_str::<MemoryPlan>(&text);
    }
}
