#!/usr/bin/env bash
# Runs interop/executorch: fetches the released ExecuTorch runtime and libclang into
# target/interop, builds, lints, tests, and prints what both cost. Prints a skip
# where it can not run: on other systems, without what it needs, and where the
# registries can not be reached. Whatever else fails is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { printf 'skipped: interop/executorch: %s\n' "$*"; exit 0; }
. ci/fetch.sh

[ "$(uname -s)" = Linux ] || skip "the runtime is fetched for Linux only"
for tool in gcc g++; do
  command -v "$tool" >/dev/null || skip "$tool is not installed"
done
cache=$(realpath -m "${CARGO_TARGET_DIR:-target}")/interop
mkdir -p "$cache"
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Its library is the same for every version of Python.
fetch_wheel "$cache/executorch-1.5.1" executorch==1.5.1 --python-version 3.11 --implementation cp \
  --platform "manylinux_2_28_$(uname -m)"
fetch_wheel "$cache/libclang-18.1.1" libclang==18.1.1
fetch_crates

export EXECUTORCH_RS_LINK=0 EXECUTORCH_RUNTIME=$cache/executorch-1.5.1/executorch
export LIBCLANG_PATH=$cache/libclang-18.1.1/clang/native
BINDGEN_EXTRA_CLANG_ARGS="-I$(gcc -print-file-name=include)"
export BINDGEN_EXTRA_CLANG_ARGS
package=(--quiet --package interop-executorch --features runtime)
# In release throughout, so that the C++ is compiled once.
cargo clippy "${package[@]}" --release --no-deps --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc "${package[@]}" --release --no-deps --document-private-items
# The runtime writes a line for each thing that it refuses, and it is asked for much.
tests=$(cargo test "${package[@]}" --release --lib --bins --tests 2>&1) || { echo "$tests"; exit 1; }
grep '^test result' <<<"$tests"
costs=$(cargo bench "${package[@]}" --bench costs --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*costs[^"]*\)".*/\1/p' | tail -n 1)
if ! command -v valgrind >/dev/null; then
  echo "valgrind is not installed: times in place of instructions"
  "$costs"
  exit 0
fi
# One run, in which each operation is done in a loop of its own function.
valgrind --quiet --tool=callgrind --callgrind-out-file="$work/counts" "$costs" --count 2>/dev/null
callgrind_annotate --inclusive=yes --threshold=100 "$work/counts" >"$work/annotated"
"$costs" --table "$work/annotated"
