//! Planning: the original's plans offset for offset, real arenas at their lower
//! bound, every algorithm right, every bad request refused.

#[path = "plan/exported.rs"]
mod exported;
#[cfg(feature = "serde")]
#[path = "plan/json.rs"]
mod json;
#[path = "plan/many.rs"]
mod many;
#[path = "plan/requests.rs"]
mod requests;

use device_memory::plan::{
    Algorithm, DeviceOptions, Gap, Goal, PlanOptions, PlanReport, PlanRequest, PlanStatus,
    PlanTable, PlanValue, check,
};
use device_memory::{Device, DeviceType, ErrorKind, PlanError};
use proptest::prelude::*;

use requests::any_request;

const CUDA: Device = Device::new(DeviceType::Cuda, 0);

fn plan(request: &PlanRequest, algorithm: Algorithm) -> PlanReport {
    let options = PlanOptions::new(algorithm).nodes(20_000).no_deadline();
    let report = request.plan(&options).unwrap();
    check(request, &report.plan).unwrap_or_else(|fault| panic!("{algorithm}: {fault}"));
    report
}

#[test]
fn buffers_come_as_the_original_lists_them() {
    let cuda_1 = Device::new(DeviceType::Cuda, 1);
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    for device in [cuda_1, CUDA, Device::CPU] {
        request.push(PlanValue::new(20, 0..=1).on(device));
    }

    let report = plan(&request, Algorithm::Auto);

    let layout = report.executorch_layout();
    assert_eq!(layout.sizes, [0, 32, 32, 32]);
    assert_eq!(layout.devices, [(2, CUDA), (3, cuda_1)]);
    let ids = report
        .plan
        .placements()
        .iter()
        .map(|placement| placement.memory_id);
    assert!(ids.eq([2, 1, 0]));
    let none = plan(&PlanRequest::new(), Algorithm::Auto).executorch_layout();
    assert_eq!(none.sizes, [0, 0]);
}

#[test]
fn padding_is_behind_every_buffer_that_holds_values_and_no_other() {
    let padded = DeviceOptions::aligned(16).padding(64);
    let mut request = PlanRequest::new();
    request.set_default(padded);
    request.set_device(CUDA, padded.padding(100));
    request.push(PlanValue::new(20, 0..=1));
    request.push(PlanValue::new(20, 2..=3).in_pool(2));
    request.push(PlanValue::new(0, 2..=3).in_pool(3));
    request.push(PlanValue::new(48, 0..=1).on(CUDA));
    request.push(PlanValue::new(17, 1..=1).on(CUDA));

    for algorithm in Algorithm::ALL {
        let report = plan(&request, algorithm);

        // 32 and 64; nothing in pool 1; 0 and 64; 48, 32 and 100.
        let layout = report.executorch_layout();
        assert_eq!(layout.sizes, [0, 96, 0, 96, 64, 180], "{algorithm}");
        assert_eq!(layout.devices, [(5, CUDA)], "{algorithm}");
        let peaks = report.arenas.iter().map(|arena| arena.peak);
        assert!(peaks.eq([32, 0, 32, 0, 80]), "{algorithm}");
    }
}

#[test]
fn pools_and_devices_go_together() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    request.push(PlanValue::new(16, 0..=1).in_pool(1));
    request.push(PlanValue::new(16, 0..=1).on(CUDA).in_pool(2));
    request.push(PlanValue::new(16, 0..=1).on(CUDA));

    let report = plan(&request, Algorithm::Auto);

    let sizes = report
        .plan
        .buffers()
        .iter()
        .map(|buffer| (buffer.device, buffer.size));
    let expected = [
        (Device::CPU, 0),
        (Device::CPU, 16),
        (CUDA, 16),
        (CUDA, 0),
        (CUDA, 16),
    ];
    assert!(sizes.eq(expected));
}

#[test]
fn what_is_reserved_for_submodules_is_left_free() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    request.reserve(Device::CPU, 0, 100);
    request.reserve(Device::CPU, 0, 40);
    request.push(PlanValue::new(16, 0..=1));

    for algorithm in Algorithm::ALL {
        let report = plan(&request, algorithm);

        assert_eq!(report.plan.placements()[0].offset, 112, "{algorithm}");
        assert_eq!(report.arenas[0].lower_bound, 128, "{algorithm}");
    }
}

#[test]
fn no_more_than_what_is_reserved_is_left_free() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    request.reserve(Device::CPU, 0, 100);
    request.push(PlanValue::new(16, 0..=1).at_offset(112));
    request.push(PlanValue::new(16, 0..=1));
    request.push(PlanValue::new(128, 0..=1).aligned(256));

    for algorithm in Algorithm::ALL {
        let arena = plan(&request, algorithm).arenas.remove(0);

        assert!(arena.peak >= 384 && arena.lower_bound <= 384, "{algorithm}");
        if matches!(algorithm, Algorithm::Auto | Algorithm::Optimal) {
            assert_eq!((arena.peak, arena.status), (384, PlanStatus::Optimal));
        }
    }
}

#[test]
fn values_of_no_bytes_stay_where_they_must_be() {
    let mut request = PlanRequest::new();
    request.reserve(Device::CPU, 0, 100);
    request.push(PlanValue::new(0, 0..=1).at_offset(0));
    request.push(PlanValue::new(0, 0..=1).at_offset(64));
    request.push(PlanValue::new(64, 0..=1));
    request.push(PlanValue::new(0, 0..=1).at_offset(1024));

    for algorithm in Algorithm::ALL {
        let report = plan(&request, algorithm);

        let placements = report.plan.placements();
        assert_eq!(placements[0].offset, 0, "{algorithm}");
        assert_eq!(placements[1].offset, 64, "{algorithm}");
        assert_eq!(placements[3].offset, 1024, "{algorithm}");
        let end = match algorithm {
            Algorithm::Naive | Algorithm::ExecutorchGreedy => 1088,
            _ => 1024,
        };
        assert_eq!(report.arenas[0].peak, end, "{algorithm}");
        assert_eq!(report.arenas[0].lower_bound, 1024, "{algorithm}");
    }
}

#[test]
fn what_a_value_never_needs_may_lie_in_what_is_reserved() {
    let whole = |window| Gap {
        steps: 0..=1,
        window,
    };
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    request.reserve(Device::CPU, 0, 32);
    request.push(PlanValue::new(64, 0..=1).with_gap(whole(Some(32..64))));
    request.push(PlanValue::new(64, 0..=1).with_gap(whole(None)));
    request.push(
        PlanValue::new(64, 0..=1)
            .at_offset(0)
            .with_gap(whole(Some(40..48))),
    );

    for algorithm in Algorithm::ALL {
        plan(&request, algorithm);
    }
}

#[test]
fn a_pool_that_is_too_high_can_not_be_reserved() {
    for (pool, refused) in [(1023, false), (1024, true), (u32::MAX, true)] {
        let mut request = PlanRequest::new();
        request.push(PlanValue::new(16, 0..=1));
        request.reserve(Device::CPU, pool, 64);

        let error = request.plan(&PlanOptions::default()).err();

        let text = format!("pool {pool} of cpu:0 is too high to be reserved: 1024 pools a device");
        assert_eq!(
            error.map(|error| error.to_string()),
            refused.then_some(text)
        );
    }
}

#[test]
fn an_alignment_that_passes_the_capacity_is_no_proof_that_nothing_fits() {
    for align in [32, 64, 1 << 20, 1 << 40] {
        let mut request = PlanRequest::new();
        request.set_default(DeviceOptions::aligned(16).capacity(32));
        request.push(PlanValue::new(16, 0..=1));
        request.push(PlanValue::new(16, 0..=1).aligned(align));
        for goal in [Goal::Fit, Goal::Smallest] {
            let report = request.plan(&PlanOptions::default().goal(goal));

            let arena = report.unwrap().arenas.remove(0);
            assert_eq!((arena.peak, arena.proved), (32, 32), "{align}");
        }
    }
}

#[test]
fn a_value_in_place_of_another_shares_its_bytes() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    let base = request.push(PlanValue::new(64, 0..=1));
    request.push(PlanValue::new(16, 2..=5).alias_of(base, 32));
    request.push(PlanValue::new(64, 3..=4));

    for algorithm in Algorithm::ALL {
        let report = plan(&request, algorithm);

        let [first, inside, _] = report.plan.placements() else {
            panic!("three placements");
        };
        assert_eq!(inside.offset, first.offset + 32, "{algorithm}");
    }
}

fn refused(values: impl IntoIterator<Item = PlanValue>) -> String {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16));
    for value in values {
        request.push(value);
    }
    let texts = Algorithm::ALL.map(|algorithm| {
        let error = request.plan(&PlanOptions::new(algorithm)).unwrap_err();
        assert_eq!(error.code(), 0x12, "{algorithm}");
        error.to_string()
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    texts[0].clone()
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
fn bad_requests_are_refused_with_the_value_that_is_bad() {
    let fine = || PlanValue::new(16, 0..=1);

    assert_eq!(
        refused([fine(), PlanValue::new(16, 5..=2)]),
        "life of value 1 is reversed: first use 5, last use 2"
    );
    assert_eq!(
        refused([fine().aligned(24)]),
        "invalid alignment 24 of value 0: not a power of two"
    );
    assert_eq!(
        refused([fine().at_offset(8)]),
        "fixed offset 8 of value 0 is not aligned to 16"
    );
    assert_eq!(
        refused([fine().at_offset(16), fine().at_offset(16)]),
        "fixed offset 16 of value 1 overlaps value 0"
    );
    assert_eq!(
        refused([fine().alias_of(1, 0), fine().alias_of(0, 0)]),
        "value 1 can not use the storage of value 0: they use the storage of each other"
    );
    assert_eq!(
        refused([fine(), fine().alias_of(0, 16)]),
        "value 1 can not use the storage of value 0: it passes the end"
    );
    assert_eq!(
        refused([fine().in_pool(4096)]),
        "pool 4096 of value 0 is too high: 1024 pools a device"
    );
    let huge = refused([PlanValue::new(usize::MAX - 3, 0..=1)]);
    assert_eq!(huge, "plan needs more bytes on cpu:0 than can be addressed");
    let many = (0..8).map(|_| PlanValue::new(usize::MAX / 8, 0..=1));
    assert_eq!(
        refused(many),
        "plan needs more bytes on cpu:0 than can be addressed"
    );
}

#[test]
fn values_of_no_bytes_and_of_one_step_are_planned() {
    let mut request = PlanRequest::new();
    for step in 0..50 {
        request.push(PlanValue::new(0, step..=step));
        request.push(PlanValue::new(64, step..=step));
    }

    for algorithm in Algorithm::ALL {
        let report = plan(&request, algorithm);

        if algorithm != Algorithm::Naive {
            assert_eq!(report.arenas[0].peak, 64, "{algorithm}");
        }
    }
}

#[test]
fn an_aligned_value_of_no_bytes_raises_no_peak() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(4));
    request.push(PlanValue::new(7, 0..=0));
    request.push(PlanValue::new(0, 0..=0).aligned(16));

    for algorithm in Algorithm::ALL {
        assert_eq!(plan(&request, algorithm).arenas[0].peak, 8, "{algorithm}");
    }
}

#[test]
fn a_capacity_that_is_missed_is_reported_with_its_worst_step() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16).capacity(100));
    request.push(PlanValue::new(64, 0..=3));
    request.push(PlanValue::new(64, 2..=5));
    request.push(PlanValue::new(16, 5..=6));

    let error = request.plan(&PlanOptions::default().explain()).unwrap_err();

    let ErrorKind::Plan(PlanError::OverCapacity(report)) = error.kind() else {
        panic!("{error}");
    };
    assert_eq!(
        (report.needed, report.capacity, report.over),
        (128, 100, 28)
    );
    assert!(report.proved);
    assert_eq!((report.worst_step, &report.live[..]), (2, &[0, 1][..]));
    assert_eq!(report.irreducible, [0, 1]);
}

#[test]
fn a_value_that_does_not_fit_alone_is_the_reason_alone() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(16).capacity(1 << 20));
    for step in 0..4000 {
        request.push(PlanValue::new(16, step..=step + 3));
    }
    let too_high = request.push(PlanValue::new(32, 7..=8).at_offset((1 << 20) - 16));

    let error = request.plan(&PlanOptions::default().explain()).unwrap_err();

    let ErrorKind::Plan(PlanError::OverCapacity(report)) = error.kind() else {
        panic!("{error}");
    };
    assert!(report.proved);
    assert_eq!(report.irreducible, [too_high]);
}

#[test]
fn no_algorithm_places_a_value_onto_one_whose_fixed_offset_comes_later() {
    let mut request = PlanRequest::new();
    request.set_default(DeviceOptions::aligned(1));
    request.push(PlanValue::new(10, 0..=3));
    request.push(PlanValue::new(10, 1..=2).at_offset(5));
    request.push(PlanValue::new(3, 2..=4));

    for algorithm in Algorithm::ALL {
        let placements = plan(&request, algorithm).plan;

        assert_eq!(placements.placements()[1].offset, 5, "{algorithm}");
    }
}

#[test]
fn tables_are_read_with_every_name_and_written_back() {
    let text = "buffer_id,start,end,size,alignment,gaps,device,note\n\
                a,0,4,64,16,1-2@0:16,cuda:0,x\nb,2,3,32,1,,cpu:0,y\n\nignored";

    let table = PlanTable::parse(text).unwrap();

    assert_eq!(
        table.to_csv(None).unwrap(),
        "id,lower,upper,size,alignment,gaps,device,note\n\
         a,0,5,64,16,1-3@0:16,cuda:0,x\nb,2,4,32,1,,cpu:0,y\n"
    );
    let again = PlanTable::parse(&table.to_csv(None).unwrap()).unwrap();
    assert_eq!(again, table);
}

#[test]
fn offsets_other_names_and_several_gaps_are_read() {
    let text = "offset,buffer,begin,upper,size,gaps,hint\n\
                64,a,0,9,16,1-2 4-6@0:8,7\n,b,1,2,32,,\n";

    let table = PlanTable::parse(text).unwrap();

    let [first, second] = table.request().values() else {
        panic!("two values");
    };
    assert_eq!((first.fixed_offset, second.fixed_offset), (Some(64), None));
    assert_eq!((first.name.as_deref(), first.first_use), (Some("a"), 0));
    let gaps = first
        .gaps
        .iter()
        .map(|gap| (gap.steps.clone(), gap.window.clone()));
    assert!(gaps.eq([(1..=1, None), (4..=5, Some(0..8))]));
    assert_eq!(
        table.to_csv(None).unwrap(),
        "id,lower,upper,size,gaps,hint,offset\n\
         a,0,9,16,1-2 4-6@0:8,7,64\nb,1,2,32,,,\n"
    );
    let planned = table.request().plan(&PlanOptions::default()).unwrap();
    let written = table.to_csv(Some(&planned.plan)).unwrap();
    assert_eq!(
        written,
        "id,lower,upper,size,gaps,hint,offset\n\
         a,0,9,16,1-2 4-6@0:8,7,64\nb,1,2,32,,,0\n"
    );
    let again = PlanTable::parse(&written).unwrap();
    assert_eq!(again.request().values()[1].fixed_offset, Some(0));
}

#[test]
fn values_that_are_added_to_a_table_are_written_too() {
    let mut table = PlanTable::parse("id,lower,upper,size,note\na,0,2,64,x\n").unwrap();

    table
        .request_mut()
        .push(PlanValue::new(32, 1..=1).on(CUDA).at_offset(128));

    assert_eq!(
        table.to_csv(None).unwrap(),
        "id,lower,upper,size,device,note,offset\na,0,2,64,cpu:0,x,\n1,1,2,32,cuda:0,,128\n"
    );
}

#[test]
fn what_a_table_can_not_hold_is_not_written() {
    let fine = || PlanValue::new(16, 0..=1);
    let refused = |values: [PlanValue; 2]| {
        let mut request = PlanRequest::new();
        for value in values {
            request.push(value);
        }
        let refused = PlanTable::from(request).to_csv(None);
        refused.unwrap_err().to_string()
    };

    assert_eq!(
        refused([fine(), fine().named("a,b")]),
        "line 3: id \"a,b\" can not be written"
    );
    assert_eq!(
        refused([fine().named("a\nb"), fine()]),
        "line 2: id \"a\\nb\" can not be written"
    );
    assert_eq!(
        refused([fine().named(" a"), fine()]),
        "line 2: id \" a\" can not be written"
    );
    assert_eq!(
        refused([fine().named("1"), fine()]),
        "line 3: id \"1\" is that of line 2 too"
    );
    let storage = "line 3: there is no column for storage and pools";
    assert_eq!(refused([fine(), fine().alias_of(0, 0)]), storage);
    assert_eq!(refused([fine(), fine().in_pool(1)]), storage);
    assert_eq!(
        refused([PlanValue::new(1, 0..=usize::MAX), fine()]),
        "line 2: there is no step after the last"
    );
}

#[test]
fn bad_tables_are_refused_with_their_line() {
    let refused = |text: &str| PlanTable::parse(text).unwrap_err().to_string();

    assert_eq!(
        refused("id,lower,upper"),
        "line 1: there is no column \"size\""
    );
    assert_eq!(
        refused("id,id,lower,upper,size"),
        "line 1: column \"id\" is there twice"
    );
    let head = "id,lower,upper,size\n";
    let line = |line: &str| refused(&format!("{head}{line}"));
    assert_eq!(line("a,0,1"), "line 2: 3 fields for 4 columns");
    assert_eq!(line("a,0,x,1"), "line 2: upper \"x\" is no number");
    assert_eq!(line("a,3,3,1"), "line 2: upper is not above lower");
    assert_eq!(
        line("a,0,1,1\na,0,1,1"),
        "line 3: id \"a\" is that of line 2 too"
    );
    assert_eq!(line("a,0,1,-4"), "line 2: size \"-4\" is no number");
}

proptest! {
    #[test]
    fn every_algorithm_gives_a_right_plan_and_none_beats_the_search(
        (request, _) in any_request(0..16),
        capacity in 0_usize..3000,
    ) {
        let options = Algorithm::ALL.map(|of| PlanOptions::new(of).nodes(400).no_deadline());
        let reports = Algorithm::ALL.map(|algorithm| plan(&request, algorithm));

        for report in &reports {
            for (arena, best) in report.arenas.iter().zip(&reports[6].arenas) {
                let algorithm = arena.algorithm;
                prop_assert!(arena.lower_bound <= arena.proved, "{}", algorithm);
                prop_assert!(best.proved <= arena.peak, "{}", algorithm);
                prop_assert!(best.peak <= arena.peak, "{}", algorithm);
            }
            for (arena, auto) in report.arenas.iter().zip(&reports[7].arenas) {
                let is_searched = arena.algorithm == "search";
                prop_assert!(is_searched || auto.peak <= arena.peak, "{}", arena.algorithm);
            }
        }
        let mut limited = request.clone();
        for device in [Device::CPU, CUDA] {
            limited.set_device(device, request.device(device).capacity(capacity));
        }
        let (mut fits, mut proved) = (false, false);
        for options in options {
            match limited.plan(&options.goal(Goal::Fit)) {
                Ok(report) => {
                    check(&limited, &report.plan).unwrap();
                    fits = true;
                }
                Err(error) => match error.into_kind() {
                    ErrorKind::Plan(PlanError::OverCapacity(report)) => proved |= report.proved,
                    other => panic!("{other:?}"),
                },
            }
        }
        prop_assert!(!(fits && proved));
    }

    #[test]
    fn no_text_makes_the_reader_of_tables_panic(text in "[a-z0-9,@:\\- \n]{0,80}") {
        let _ = PlanTable::parse(&text);
        let _ = PlanTable::parse(&format!("id,lower,upper,size,gaps,offset\n{text}"));
    }
}
