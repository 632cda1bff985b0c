//! The examples that plan: what they print, where, and with which exit code.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use device_memory::pte::Program;

use crate::run;
use crate::support::{JUMP_FALSE, Patch};

/// Eight values that no heuristic places in 12 bytes, which is the most that is alive at
/// once.
const EIGHT: &str = "id,lower,upper,size\n\
    a,2,6,1\nb,5,8,3\nc,6,10,5\nd,1,5,5\ne,5,6,3\nf,4,8,4\ng,0,4,3\nh,2,4,3\n";

/// A file that is gone when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("plan-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn holding(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let scratch = Self::new(name);
        fs::write(&scratch.0, bytes).unwrap();
        scratch
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What a program printed, and its exit code.
fn said(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

fn plan_csv(table: &Scratch, flags: &[&str]) -> (i32, String, String) {
    let words = [&[table.path()], flags].concat();
    said(run("plan_csv", &words))
}

/// The number behind `name` in a line.
fn number(text: &str, name: &str) -> usize {
    let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("{text}"));
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit());
    digits.into_iter().next().unwrap().parse().unwrap()
}

/// The end of the highest value of a table with offsets, in which no two that are alive
/// together share bytes.
fn checked_peak(csv: &str) -> usize {
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("id,lower,upper,size,offset"));
    let rows: Vec<[usize; 4]> = lines
        .map(|line| {
            let mut fields = line.split(',').skip(1);
            [(); 4].map(|()| fields.next().unwrap().parse().unwrap())
        })
        .collect();
    assert_eq!(rows.len(), 8);
    for (index, [lower, upper, size, offset]) in rows.iter().enumerate() {
        for [from, to, other, at] in &rows[..index] {
            let meet = lower < to && from < upper;
            let share = *offset < at + other && *at < offset + size;
            assert!(!(meet && share), "{csv}");
        }
    }
    let ends = rows.iter().map(|[.., size, offset]| size + offset);
    ends.max().unwrap()
}

#[test]
fn nested_cargo_a_table_is_printed_with_offsets_and_what_is_known_of_them() {
    let table = Scratch::holding("offsets.csv", EIGHT);

    let (code, stdout, stderr) = plan_csv(&table, &[]);

    assert_eq!(code, 0);
    assert_eq!(checked_peak(&stdout), 12);
    for (line, from) in stdout.lines().zip(EIGHT.lines()) {
        assert!(line.starts_with(from), "{line}");
    }
    let [arena, time] = *stderr.lines().collect::<Vec<_>>() else {
        panic!("{stderr}");
    };
    assert!(arena.starts_with("cpu:0: peak 12, lower bound 12, by search, "));
    assert!(arena.ends_with("; smallest proved: yes"), "{arena}");
    let time: f64 = time.strip_suffix(" ms").unwrap().parse().unwrap();
    assert!(time > 0.0 && time < 60_000.0, "{stderr}");
}

#[test]
fn nested_cargo_a_table_is_planned_by_the_algorithm_that_is_named() {
    let table = Scratch::holding("algorithm.csv", EIGHT);

    for name in [
        "naive",
        "executorch_greedy",
        "greedy_by_size",
        "greedy_by_breadth",
        "best_fit",
        "first_fit",
    ] {
        let (code, stdout, stderr) = plan_csv(&table, &["--algorithm", name]);

        assert_eq!(code, 0, "{stderr}");
        assert!(
            stderr.contains(&format!(", by {name}, 0 nodes;")),
            "{stderr}"
        );
        let peak = checked_peak(&stdout);
        assert_eq!(number(&stderr, "peak"), peak, "{name}");
        assert!(peak > 12, "{name}");
        assert_eq!(name == "naive", peak == 27, "{name}");
        assert!(stderr.contains("; smallest proved: no\n"), "{stderr}");
    }
    let (_, stdout, stderr) = plan_csv(&table, &["--algorithm", "optimal"]);
    assert_eq!(checked_peak(&stdout), 12);
    assert!(number(&stderr, "by search,") > 0, "{stderr}");
}

#[test]
fn nested_cargo_a_table_is_searched_for_as_long_as_the_budget() {
    let table = Scratch::holding("budget.csv", EIGHT);

    let (none, long) = (["--budget-ms", "0"], ["--budget-ms", "60000"]);
    let [none, long] = [none, long].map(|flags| plan_csv(&table, &flags));

    assert_eq!((checked_peak(&none.1), checked_peak(&long.1)), (13, 12));
    assert!(
        none.2.contains(" 0 nodes; smallest proved: no\n"),
        "{}",
        none.2
    );
    assert!(long.2.contains("; smallest proved: yes\n"), "{}", long.2);
}

#[test]
fn nested_cargo_a_table_that_fits_its_capacity_is_printed() {
    let table = Scratch::holding("fits.csv", EIGHT);

    for (capacity, most) in [("12", 12), ("13", 13), ("1000", 27)] {
        let (code, stdout, stderr) = plan_csv(&table, &["--capacity", capacity]);

        assert_eq!(code, 0, "{stderr}");
        assert!(checked_peak(&stdout) <= most, "{capacity}");
    }
}

#[test]
fn nested_cargo_a_capacity_that_can_not_be_met_is_one_line_and_says_if_it_is_proved() {
    let table = Scratch::holding("over.csv", EIGHT);
    let line = |over, capacity, proved| {
        format!(
            "error: cpu:0 needs 13 bytes, {over} over the capacity of {capacity}; \
             lower bound 12; proved: {proved}\n"
        )
    };

    let proved = plan_csv(&table, &["--capacity", "11"]);
    let unknown = plan_csv(&table, &["--capacity", "12", "--budget-ms", "0"]);

    assert_eq!(proved, (1, String::new(), line(2, 11, "yes")));
    assert_eq!(unknown, (1, String::new(), line(1, 12, "no")));
}

#[test]
fn nested_cargo_what_is_no_table_or_no_flag_is_one_line_and_another_exit_code() {
    let table = Scratch::holding("wrong.csv", EIGHT);
    let bad = Scratch::holding("bad.csv", "id,lower,upper\na,0,1\n");
    let [table, bad] = [table.path(), bad.path()];

    for (words, begin) in [
        (vec![], "usage: plan_csv FILE"),
        (vec![table, table], "usage: "),
        (vec![table, "--nonsense"], "usage: "),
        (vec![table, "--capacity"], "usage: "),
        (
            vec![table, "--capacity", "-1"],
            "\"-1\" is no number: usage: ",
        ),
        (
            vec![table, "--budget-ms", "soon"],
            "\"soon\" is no number: usage: ",
        ),
        (
            vec![table, "--algorithm", "best"],
            "no planning algorithm \"best\": ",
        ),
        (vec!["nonsense.csv"], "nonsense.csv: "),
        (vec![bad], "line 1: there is no column \"size\""),
    ] {
        let (code, stdout, stderr) = said(run("plan_csv", &words));

        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}: {stderr}");
        assert!(stderr.starts_with(&format!("error: {begin}")), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

fn plan_program(words: &[&str]) -> (i32, String, String) {
    said(run("plan_program", words))
}

#[test]
fn nested_cargo_a_program_is_planned_again_and_the_bytes_before_and_after_are_said() {
    let new = Scratch::new("new.pte");
    let file = "tests/data/pte/dynamic_cuda0.pte";

    let (code, stdout, stderr) = plan_program(&[file, "-o", new.path()]);

    assert_eq!((code, stderr.as_str()), (0, ""));
    let words: Vec<Vec<&str>> = stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let head = [
        "method", "arena", "device", "before", "after", "lower", "bound",
    ];
    let host = ["forward", "0", "cpu:0", "4608", "4096", "4096"];
    let device = ["forward", "1", "cuda:0", "4352", "4352", "4352"];
    assert_eq!(words[..3], [&head[..], &host[..], &device[..]]);
    assert!(stdout.ends_with("\ntogether 8960 bytes before, 8448 after\n"));
    let bytes = fs::read(&new.0).unwrap();
    let program = Program::parse(&bytes).unwrap();
    let method = program.method("forward").unwrap();
    let sizes = [0, 1].map(|arena| method.memory_planned_buffer_size(arena).unwrap());
    assert_eq!(sizes, [4096, 4352]);
    let (_, again, _) = plan_program(&[new.path()]);
    assert!(again.ends_with("\ntogether 8448 bytes before, 8448 after\n"));
}

#[test]
fn nested_cargo_a_page_shows_all_arenas_of_all_methods_with_two_plans_each() {
    let page = Scratch::new("page.html");
    for (name, arenas) in [
        (
            "two_devices",
            &["forward cpu:0", "forward cuda:0", "forward cuda:1"][..],
        ),
        ("multi_method_cpu", &["decode cpu:0", "encode cpu:0"]),
    ] {
        let file = format!("tests/data/pte/{name}.pte");

        let (code, _, stderr) = plan_program(&[&file, "--html", page.path()]);

        assert_eq!((code, stderr.as_str()), (0, ""));
        let html = fs::read_to_string(&page.0).unwrap();
        assert!(html.contains(&format!("<h1>{name}.pte</h1>")));
        let sections: Vec<&str> = html.split("<h2>").skip(1).collect();
        assert_eq!(sections.len(), arenas.len(), "{name}");
        for (section, arena) in sections.iter().zip(arenas) {
            let (method, device) = arena.split_once(' ').unwrap();
            assert!(section.starts_with(&format!("method {method}, arena ")));
            let charts = section.matches(&format!(">{device}: ")).count();
            assert_eq!(charts, 2, "{arena}");
            let greedy = section.find(">ExecuTorch greedy</th>").unwrap();
            assert!(greedy < section.find(">auto</th>").unwrap());
        }
    }
}

#[test]
fn nested_cargo_a_program_that_can_not_be_planned_again_is_one_line_with_the_reason() {
    let mut patch = Patch::of("add_cuda0");
    patch.turn_last(JUMP_FALSE, 0, 2);
    let jumping = Scratch::holding("jumping.pte", &patch.bytes);
    let new = Scratch::new("none.pte");

    let (code, stdout, stderr) = plan_program(&[jumping.path(), "-o", new.path()]);

    assert_eq!((code, stdout.as_str()), (1, ""));
    assert_eq!(
        stderr,
        "error: method \"forward\" can not be planned again: instruction 3 jumps\n"
    );
    assert!(!new.0.exists());
}

#[test]
fn nested_cargo_what_is_no_program_or_no_flag_is_one_line_and_another_exit_code() {
    let file = "tests/data/pte/add_cpu.pte";
    for (words, begin) in [
        (vec![], "usage: plan_program FILE"),
        (vec![file, file], "usage: "),
        (vec![file, "--nonsense"], "usage: "),
        (vec![file, "-o"], "usage: "),
        (vec!["nonsense.pte"], "nonsense.pte: "),
        (
            vec!["tests/data/pte/bad/memory_id_zero.pte"],
            "invalid program: ",
        ),
    ] {
        let (code, stdout, stderr) = plan_program(&words);

        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}: {stderr}");
        assert!(stderr.starts_with(&format!("error: {begin}")), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
