//! The ranks of the modules, and what each may import.
//!
//! The table below is the one in `DESIGN.md`. An import goes to a lower rank
//! only; modules of one rank do not import each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules by rank. A folder of siblings is listed as `folder/`: each of its
/// children is a module of its own. A part that stands higher than the module
/// around it is listed by its path.
const RANKS: &[&[&str]] = &[
    &[
        "device",
        "layout",
        "address",
        "scalar",
        "process",
        "unwind",
        "sync",
        "table",
        "free_space",
        "escape",
        "units",
    ],
    &["error", "ledger"],
    &["allocator", "free_failure", "plan", "shape", "reading"],
    &["span", "observe", "stream", "make_room"],
    &["adaptor/", "backend/", "pte", "graph"],
    &["registry"],
    &["buffer"],
    &[
        "hierarchical",
        "tensor",
        "block_pool",
        "backend/cuda/interop",
        "backend/cuda/transfer",
        "backend/cuda/uploader",
    ],
    &["planned", "testing", "dlpack"],
    &["weights", "runner"],
    &["book"],
];

/// Dependencies, and the modules that may name them.
const CONFINED: &[(&str, &str)] = &[
    ("planus", "pte"),
    ("libc", "process"),
    ("dlpack_ffi", "dlpack"),
    ("safetensors", "weights"),
    ("serde", "weights graph plan"),
];

/// The rank of a module, by the name used in `RANKS`.
fn ranks() -> BTreeMap<&'static str, usize> {
    RANKS
        .iter()
        .enumerate()
        .flat_map(|(rank, modules)| modules.iter().map(move |&module| (module, rank)))
        .collect()
}

/// All source files below `dir`.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The module path of a file, from the crate root: `["buffer", "raw"]`.
fn module_path(file: &Path, root: &Path) -> Vec<String> {
    let relative = file.strip_prefix(root).unwrap().with_extension("");
    relative
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect()
}

/// The name in the table of the module that a path leads into: the longest, so
/// that a part listed by itself is found before the module around it.
fn name_in_table(path: &[String]) -> Option<&'static str> {
    let ranks = ranks();
    let first = path.first()?;
    let prefixes = (2..=path.len()).rev().map(|len| path[..len].join("/"));
    let mut parts = prefixes.filter_map(|prefix| ranks.keys().find(|&&name| name == prefix));
    if let Some(part) = parts.next() {
        return Some(part);
    }
    let folder = format!("{first}/");
    let listed = ranks
        .keys()
        .find(|&&name| name == first.as_str() || name == folder);
    listed.copied()
}

/// What tells two modules apart: siblings in a folder differ by their child.
fn identity(path: &[String]) -> String {
    match name_in_table(path) {
        Some(folder) if folder.ends_with('/') => {
            path.iter().take(2).cloned().collect::<Vec<_>>().join("/")
        }
        Some(name) => name.to_owned(),
        None => String::new(),
    }
}

/// A file without comments and without its unit tests.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let before_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
    before_tests
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The paths after `crate::` in a piece of code.
fn imports(code: &str) -> Vec<Vec<String>> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.match_indices("crate::")
        .filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .map(|(at, marker)| {
            let rest = &code[at + marker.len()..];
            let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
            rest[..end]
                .split("::")
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        })
        .collect()
}

#[test]
fn every_import_goes_to_a_lower_rank() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let ranks = ranks();
    let mut faults = Vec::new();

    for file in sources(&root) {
        let path = module_path(&file, &root);
        if path == ["lib"] {
            continue;
        }
        let Some(own) = name_in_table(&path) else {
            faults.push(format!("{} is in no rank", path.join("/")));
            continue;
        };
        if path.len() == 1 && code(&file).contains("super::") {
            faults.push(format!("{} goes through super", path.join("/")));
        }
        for import in imports(&code(&file)) {
            let Some(other) = name_in_table(&import) else {
                faults.push(format!(
                    "{} imports crate::{}, which is no module: name the module, not a re-export",
                    path.join("/"),
                    import.join("::")
                ));
                continue;
            };
            let same = identity(&path) == identity(&import);
            if !same && ranks[other] >= ranks[own] {
                faults.push(format!(
                    "{} (rank {}) imports {} (rank {})",
                    path.join("/"),
                    ranks[own],
                    import.join("::"),
                    ranks[other]
                ));
            }
        }
    }

    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_header_says_the_rank() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let ranks = ranks();
    let mut faults = Vec::new();

    for file in sources(&root) {
        let path = module_path(&file, &root);
        let Some(own) = name_in_table(&path) else {
            continue;
        };
        let expected = format!("//! Rank {}.", ranks[own]);
        let text = fs::read_to_string(&file).unwrap();
        if !text.lines().any(|line| line.starts_with(&expected)) {
            faults.push(format!("{}: expected a line {expected:?}", path.join("/")));
        }
    }

    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_confined_dependency_is_named_in_its_module_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut faults = Vec::new();

    for file in sources(&root) {
        let path = module_path(&file, &root);
        let code = code(&file);
        for (dependency, homes) in CONFINED {
            if code.contains(&format!("{dependency}::"))
                && !homes.split(' ').any(|home| home == path[0])
            {
                faults.push(format!("{} names {dependency}", path.join("/")));
            }
        }
    }

    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_design_shows_the_same_ranks() {
    let design =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("DESIGN.md")).unwrap();

    for (rank, modules) in RANKS.iter().enumerate() {
        let row = design
            .lines()
            .find(|line| line.starts_with(&format!("| {rank} |")))
            .unwrap_or_else(|| panic!("no row for rank {rank} in DESIGN.md"));
        for module in *modules {
            let module = module.trim_end_matches('/');
            assert!(
                row.contains(module),
                "rank {rank} in DESIGN.md lacks {module}"
            );
        }
    }
}

#[test]
fn the_rules_of_this_test_find_faults() {
    let found =
        imports("use crate::buffer::{A, B};\nfn f() -> crate::error::Result<()> { }\nmycrate::x");

    assert_eq!(found, [vec!["buffer"], vec!["error", "Result"]]);
    assert_eq!(
        identity(&["backend".to_owned(), "host".to_owned()]),
        "backend/host"
    );
    assert_eq!(name_in_table(&["lib".to_owned()]), None);
}
