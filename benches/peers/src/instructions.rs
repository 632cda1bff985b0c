//! Instructions, counted by valgrind's callgrind over functions named `counted`.

use std::env;
use std::path::Path;
use std::process::Command;

/// The instructions of this program with these arguments, or `None` where
/// valgrind is not installed.
pub(crate) fn of(arguments: &[&str]) -> Option<u64> {
    let program = env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", "--toggle-collect=*counted*"])
        .arg(Path::new(&program))
        .args(arguments)
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.split("Collected : ").nth(1)?;
    count.split_whitespace().next()?.parse().ok()
}
