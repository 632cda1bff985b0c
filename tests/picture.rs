//! Pictures of plans: what is on them, and that nothing breaks them.

use device_memory::plan::{Gap, PlanOptions, PlanPage, PlanReport, PlanRequest, PlanValue};
use device_memory::{Device, DeviceType};
use serde_json::Value;

const CUDA: Device = Device::new(DeviceType::Cuda, 0);

fn planned(values: impl IntoIterator<Item = PlanValue>) -> (PlanRequest, PlanReport) {
    let mut request = PlanRequest::new();
    for value in values {
        request.push(value);
    }
    let report = request.plan(&PlanOptions::default()).unwrap();
    (request, report)
}

fn two_arenas() -> (PlanRequest, PlanReport) {
    planned([
        PlanValue::new(4096, 0..=2).named("query <1>"),
        PlanValue::new(1024, 1..=3),
        PlanValue::new(512, 0..=0).on(CUDA).named("key & \"value\""),
    ])
}

#[test]
fn an_arena_shows_its_values_with_name_size_place_and_steps() {
    let (request, report) = two_arenas();

    let svg = report.to_svg(&request, 0).unwrap();

    assert_eq!(svg.matches("class=\"v\"").count(), 2);
    assert!(
        svg.contains("<title>query &lt;1&gt;\n4,096 bytes at "),
        "{svg}"
    );
    assert!(svg.contains("steps 0 to 2</title>"));
    assert!(svg.contains("<title>value 1\n1,024 bytes at "));
    assert!(svg.contains("cpu:0, memory id 0: "));
    assert!(svg.contains("lower bound 5,120, "));
}

/// The rectangles of the first value, as left, top, right and bottom in pixels.
fn rectangles(svg: &str) -> Vec<[f64; 4]> {
    let (_, path) = svg.split_once("class=\"v\" d=\"").unwrap();
    let (path, _) = path.split_once('"').unwrap();
    let rectangles = path.split_terminator('Z').map(|rectangle| {
        let numbers = rectangle.split(['M', ' ', 'H', 'V']).skip(1);
        let numbers: Vec<f64> = numbers.map(|number| number.parse().unwrap()).collect();
        let [left, top, right, bottom, back] = numbers[..] else {
            panic!("{rectangle}");
        };
        assert_eq!(left, back);
        [left, top, right, bottom]
    });
    rectangles.collect()
}

#[test]
fn a_value_without_gaps_is_one_rectangle() {
    let (request, report) = planned([PlanValue::new(64, 0..=3)]);

    let svg = report.to_svg(&request, 0).unwrap();

    // The axes: 640 pixels for four steps from 76 on, 320 for 64 bytes up from 366.
    assert_eq!(rectangles(&svg), [[76.0, 46.0, 716.0, 366.0]]);
    assert!(svg.contains("cpu:0: 64 bytes"), "{svg}");
}

#[test]
fn a_value_with_gaps_is_shown_where_it_needs_its_bytes() {
    let gap = |steps, window| Gap { steps, window };
    let value = PlanValue::new(64, 0..=3)
        .with_gap(gap(1..=1, None))
        .with_gap(gap(2..=2, Some(16..48)));
    let (request, report) = planned([value]);

    let svg = report.to_svg(&request, 0).unwrap();

    let parts = [
        [76.0, 46.0, 236.0, 366.0],
        [396.0, 126.0, 556.0, 286.0],
        [556.0, 46.0, 716.0, 366.0],
    ];
    assert_eq!(rectangles(&svg), parts);
    assert_eq!(svg.matches("class=\"v\"").count(), 1);
    let hover =
        "steps 0 to 3\nin steps 1 to 1 no bytes\nin steps 2 to 2 32 bytes from 16 on</title>";
    assert!(svg.contains(hover), "{svg}");
}

#[test]
fn a_trace_leaves_gaps_out() {
    let value = PlanValue::new(64, 0..=3)
        .with_gap(Gap {
            steps: 1..=1,
            window: None,
        })
        .with_gap(Gap {
            steps: 2..=2,
            window: Some(16..48),
        });
    let (request, report) = planned([value]);

    let trace = report.to_executorch_trace(&request).unwrap();

    let json: Value = serde_json::from_str(&trace).unwrap();
    let events = json["traceEvents"].as_array().unwrap().iter();
    let events =
        events.map(|event| ["tid", "ts", "dur"].map(|field| event[field].as_u64().unwrap()));
    assert!(events.eq([[0, 0, 64], [2, 16, 32], [3, 0, 64]]));
}

#[test]
fn the_line_of_what_is_alive_reaches_the_bound() {
    let gap = Gap {
        steps: 2..=4,
        window: Some(0..64),
    };
    let mut request = PlanRequest::new();
    request.reserve(Device::CPU, 0, 64);
    // Of sizes that are rounded up, a gap, and storage used after its owner's end.
    request.push(PlanValue::new(100, 0..=5).with_gap(gap));
    let owner = request.push(PlanValue::new(1000, 1..=2));
    request.push(PlanValue::new(8, 3..=4).alias_of(owner, 0));
    request.push(PlanValue::new(300, 4..=4));
    let report = request.plan(&PlanOptions::default()).unwrap();
    assert_eq!(report.arenas[0].lower_bound, 64 + 64 + 1024 + 320);

    let svg = report.to_svg(&request, 0).unwrap();

    let path = |class: &str| {
        let (_, path) = svg.split_once(&format!("class=\"{class}\" d=\"M")).unwrap();
        path.split_once('"').unwrap().0.to_owned()
    };
    let (live, bound) = (path("live"), path("bound"));
    let bound = bound.split([' ', 'H']).nth(1).unwrap().to_owned();
    let heights = live
        .split('V')
        .skip(1)
        .map(|part| part.split('H').next().unwrap());
    let heights: Vec<&str> = heights.collect();
    // Six changes: 0, 1, 2, 4, 5, and the end.
    assert_eq!(heights.len(), 6, "{live}");
    assert_eq!(heights[3], bound, "{live}");
    let high = |y: &str| y.parse::<f64>().unwrap();
    assert!(heights.iter().all(|y| high(y) >= high(&bound)), "{live}");
}

#[test]
fn another_arena_shows_its_own_values_only() {
    let (request, report) = two_arenas();

    let svg = report.to_svg(&request, 1).unwrap();

    assert_eq!(svg.matches("class=\"v\"").count(), 1);
    assert!(svg.contains("key &amp; &quot;value&quot;"));
    assert_eq!(report.to_svg(&request, 2), None);
}

#[test]
fn a_page_has_a_row_an_arena_and_a_column_a_plan_and_needs_no_other_file() {
    let (request, report) = two_arenas();

    let html = PlanPage::new("a <b>")
        .with("c <d>", &request, [("one", &report), ("other", &report)])
        .to_html();

    assert_eq!(html.matches("<svg").count(), 4);
    assert_eq!(html.matches("<tr>").count(), 3);
    assert!(html.contains("<title>a &lt;b&gt;</title>"));
    assert!(html.contains("<h2>c &lt;d&gt;</h2>"));
    for outside in ["<script", "<link", "src=", "href=", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn a_page_has_every_request_with_plans_of_its_own() {
    let (both, of_both) = two_arenas();
    let (one, of_one) = planned([PlanValue::new(64, 0..=3).named("alone")]);

    let html = PlanPage::new("page")
        .with("both", &both, [("a", &of_both), ("b", &of_both)])
        .with("one", &one, [("c", &of_one)])
        .to_html();

    let (first, second) = html.split_once("<h2>one</h2>").unwrap();
    assert_eq!(first.matches("<svg").count(), 4);
    assert_eq!(second.matches("<svg").count(), 1);
    assert!(!first.contains("alone") && second.contains("alone"));
    let headings = [">a</th>", ">b</th>", ">c</th>"].map(|of| html.matches(of).count());
    assert_eq!(headings, [1, 1, 1]);
}

#[test]
fn a_trace_has_an_event_for_each_step_of_each_value() {
    let (request, report) = two_arenas();

    let trace = report.to_executorch_trace(&request).unwrap();

    let json: Value = serde_json::from_str(&trace).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    assert_eq!(events.len(), 3 + 3 + 1);
    let last = events.last().unwrap();
    assert_eq!(last["name"], "key & \"value\"");
    assert_eq!((&last["pid"], &last["tid"]), (&2.into(), &0.into()));
    assert_eq!((&last["ts"], &last["dur"]), (&0.into(), &512.into()));
    assert_eq!(last["args"]["bytes"], 512);
}

#[test]
fn a_plan_of_nothing_is_a_page_without_pictures() {
    let (request, report) = planned([]);

    let html = PlanPage::new("empty")
        .with("nothing", &request, [("plan", &report)])
        .to_html();

    assert!(!html.contains("<svg"));
    assert_eq!(report.to_svg(&request, 0), None);
}

#[test]
fn extreme_numbers_stay_on_the_picture() {
    let (request, report) = planned([
        PlanValue::new(usize::MAX / 16, 0..=usize::MAX - 1),
        PlanValue::new(0, 7..=7),
        PlanValue::new(1, usize::MAX - 1..=usize::MAX - 1),
    ]);

    let svg = report.to_svg(&request, 0).unwrap();

    assert_eq!(svg.matches("class=\"v\"").count(), 3);
    assert!(report.to_executorch_trace(&request).is_none());
    let numbers = svg.split('"').filter_map(|text| text.parse::<f64>().ok());
    for number in numbers {
        assert!((0.0..=1000.0).contains(&number), "{number}");
    }
}
