//! The examples, run as programs.

#![cfg(all(feature = "pte", feature = "testing"))]

#[cfg(feature = "dlpack")]
#[path = "examples/dlpack.rs"]
mod dlpack;
#[path = "examples/plan.rs"]
mod plan;
#[path = "pte/support.rs"]
#[expect(dead_code, reason = "programs are only changed here, not walked")]
mod support;
#[cfg(feature = "safetensors")]
#[path = "examples/weights.rs"]
mod weights;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// The folder of the built examples, built now if they are not.
fn examples() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).unwrap().to_owned();
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--offline",
            "--all-features",
            "--examples",
        ]);
        build.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
        profile.join("examples")
    })
}

fn run(example: &str, arguments: &[&str]) -> Output {
    Command::new(examples().join(example))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// How many devices the CUDA driver of this machine has.
fn devices_of_the_driver() -> u64 {
    #[cfg(feature = "cuda")]
    if let Ok(cuda) = device_memory::backend::cuda::CudaAllocator::open() {
        let count = device_memory::DeviceAllocator::device_count(&cuda);
        return u64::try_from(count).unwrap();
    }
    0
}

/// The names of all good programs.
fn programs() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir("tests/data/pte")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".pte").map(str::to_owned))
        .collect();
    names.sort();
    assert_eq!(names.len(), 30);
    names
}

#[test]
fn nested_cargo_both_program_examples_print_the_expected_json() {
    for name in programs() {
        let file = format!("tests/data/pte/{name}.pte");
        let expected = json(format!("tests/data/pte/{name}.expect.json"));

        for example in ["inspect_program", "place_program"] {
            let output = run(example, &[&file, "--json"]);

            assert!(output.status.success(), "{example} {name}");
            assert_eq!(
                String::from_utf8_lossy(&output.stderr),
                "",
                "{example} {name}"
            );
            let found: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(found["file"], expected["file"]);
            assert_eq!(found["bytes"], expected["bytes"]);
            let methods = found["methods"].as_array().unwrap();
            assert_eq!(methods.len(), expected["methods"].as_array().unwrap().len());
            for (found, expected) in methods.iter().zip(expected["methods"].as_array().unwrap()) {
                for field in [
                    "name",
                    "inputs",
                    "outputs",
                    "non_const_buffer_sizes",
                    "num_memory_planned_buffers",
                    "buffers",
                    "planned_tensors",
                ] {
                    assert_eq!(found[field], expected[field], "{example} {name} {field}");
                }
            }
            if example == "place_program" {
                assert_eq!(found["live_bytes"], 0, "{name}");
                let simulated = found["simulated_devices"].to_string();
                let arenas = methods
                    .iter()
                    .flat_map(|method| method["buffers"].as_array().unwrap());
                for arena in arenas.filter(|arena| arena["device_type"] == 1) {
                    let index = arena["device_index"].as_u64().unwrap();
                    let said = simulated.contains(&format!("\"cuda:{index}\""));
                    assert_eq!(said, index >= devices_of_the_driver(), "{name}");
                }
            }
        }
    }
}

#[test]
fn nested_cargo_placing_a_program_ends_without_live_bytes() {
    for name in programs() {
        let output = run("place_program", &[&format!("tests/data/pte/{name}.pte")]);

        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{name}");
        assert!(text.ends_with("\nlive bytes: 0\n"), "{name}: {text}");
        for arena in text.lines().filter(|line| line.contains(" B  ")) {
            let simulated = arena.ends_with("simulated: no driver was used");
            let index = arena.split("  cuda:").nth(1).map(|rest| {
                let digits = rest.split_whitespace().next().unwrap();
                digits.parse::<u64>().unwrap()
            });
            let expected = index.is_some_and(|index| index >= devices_of_the_driver());
            assert_eq!(simulated, expected, "{name}: {arena}");
        }
    }
}

#[test]
fn nested_cargo_a_refused_program_is_one_line_and_an_oddity_is_a_warning() {
    for case in json("tests/data/pte/bad/INDEX.json").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let file = format!("tests/data/pte/bad/{name}.pte");

        let output = run("inspect_program", &[&file]);

        let stderr = String::from_utf8(output.stderr).unwrap();
        match case["should"].as_str().unwrap() {
            "refuse" => {
                assert_eq!(output.status.code(), Some(1), "{name}");
                assert_eq!(stderr.lines().count(), 1, "{name}: {stderr}");
                assert!(
                    stderr.starts_with("error: invalid program: "),
                    "{name}: {stderr}"
                );
                assert!(output.stdout.is_empty(), "{name}");
            }
            "lint" => {
                assert!(output.status.success(), "{name}: {stderr}");
                assert!(!stderr.is_empty(), "{name}");
                assert!(
                    stderr.lines().all(|line| line.starts_with("warning: ")),
                    "{name}: {stderr}"
                );
            }
            _ => {
                assert!(output.status.success(), "{name}: {stderr}");
                assert_eq!(stderr, "", "{name}");
            }
        }
    }
}

#[test]
fn nested_cargo_a_method_is_chosen_by_name() {
    let file = "tests/data/pte/multi_method_cpu.pte";

    let one = run("inspect_program", &[file, "--method", "encode", "--json"]);
    let none = run("place_program", &[file, "--method", "nonsense"]);

    let found: Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!(found["methods"].as_array().unwrap().len(), 1);
    assert_eq!(found["methods"][0]["name"], "encode");
    assert_eq!(none.status.code(), Some(1));
    let stderr = String::from_utf8(none.stderr).unwrap();
    assert!(
        stderr.contains("nonsense") && stderr.contains("decode"),
        "{stderr}"
    );
}

#[test]
fn nested_cargo_the_numbered_examples_run() {
    for example in [
        "01_allocate",
        "02_registry",
        "03_views",
        "04_planned_memory",
        "05_tensors",
        "06_write_an_allocator",
        "07_fail_each_call",
        "08_look_at_memory",
        "09_graph",
    ] {
        let output = run(example, &[]);

        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{example}");
        assert!(output.stderr.is_empty(), "{example}");
        assert!(!stdout.contains("unexpected"), "{example}: {stdout}");
    }
}

#[test]
fn nested_cargo_a_trace_is_written_replayed_and_shown() {
    let folder = std::env::temp_dir().join(format!("replay-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [log, page] = ["trace.csv", "page.html"].map(|name| folder.join(name));
    let [log, page] = [&log, &page].map(|path| path.to_str().unwrap());

    let first = run(
        "replay_log",
        &["--trace", "cnn_inference", "--write", log, "--json"],
    );
    let again = run(
        "replay_log",
        &[log, "--stack", "statistics,limit=500MiB", "--html", page],
    );

    let found: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(found["failures"], 0);
    assert_eq!(found["peak_asked"], 644_341_408);
    let stdout = String::from_utf8(again.stdout).unwrap();
    assert!(
        again.status.success(),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
    assert!(
        stdout.contains("first failure:   out of memory on cuda:0: "),
        "{stdout}"
    );
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("class=\"failure\""));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn nested_cargo_a_bad_log_is_one_line_of_error() {
    let log = std::env::temp_dir().join(format!("bad-log-{}.csv", std::process::id()));
    std::fs::write(&log, "Action,Pointer,Size\nfree,0x10,8\n").unwrap();

    let output = run("replay_log", &[log.to_str().unwrap()]);

    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.contains("line 2 frees 0x10, which is not allocated"),
        "{stderr}"
    );
    std::fs::remove_file(&log).unwrap();
}

#[test]
#[cfg(feature = "safetensors")]
fn nested_cargo_the_mixture_of_experts_decodes_and_says_what_crosses() {
    for (model, all) in [
        (
            "qwen3_moe_tiny",
            "15 to the device in a step, 312 bytes; 3 from it, 528 bytes",
        ),
        (
            "qwen3_5_moe_tiny",
            "15 to the device in a step, 17064 bytes; 9 from it, 17424 bytes",
        ),
    ] {
        let stem = format!("tests/data/moe/{model}");

        let both = run("moe", &[&stem]);
        let host = run("moe", &[&stem, "--host-in-the-loop"]);

        let text = |output: &Output| {
            assert!(output.status.success(), "{model}: {output:?}");
            assert!(output.stderr.is_empty(), "{model}: {output:?}");
            String::from_utf8(output.stdout.clone()).unwrap()
        };
        let copies = |text: &str| {
            let lines = text.lines().filter(|line| line.contains("  copies "));
            let lines = lines.map(|line| line.trim_start_matches("  copies").trim().to_owned());
            lines.collect::<Vec<_>>()
        };
        let (both, host) = (text(&both), text(&host));
        assert!(
            both.starts_with(&format!("{model} on cuda:0 (simulated):\n")),
            "{both}"
        );
        let none = "0 to the device in a step, 0 bytes; 1 from it, 8 bytes";
        assert_eq!(copies(&both), [none, all]);
        assert_eq!(copies(&host), [all]);
        assert_eq!(both.matches("tokens per second").count(), 2);
        assert_eq!(both.matches("; tokens equal").count(), 2);
    }
}

#[test]
#[cfg(feature = "safetensors")]
fn nested_cargo_the_mixture_of_experts_says_in_one_line_what_is_wrong() {
    let absent = run("moe", &["tests/data/moe/nonsense"]);
    let wrong = run("moe", &["--nonsense"]);

    for (output, begin) in [
        (absent, "error: tests/data/moe/nonsense"),
        (wrong, "error: usage: "),
    ] {
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with(begin), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
#[cfg(all(feature = "safetensors", feature = "cuda"))]
#[expect(clippy::print_stderr, reason = "who runs the tests has to see it")]
fn nested_cargo_without_a_driver_the_mixture_of_experts_says_so_and_ends() {
    if devices_of_the_driver() > 0 {
        eprintln!("skipped: what is said without a driver: there is one");
        return;
    }

    let output = run("moe", &["--cuda"]);

    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.starts_with("skipped: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
}
