#!/usr/bin/env bash
# The gate. Everything that decides whether a change may land, in one script that
# anyone can run. Needs Rust and nothing else; what else it finds it uses, and
# says what it skips.
set -euo pipefail
cd "$(dirname "$0")/.."

# Begins a step, and says how long the one before took.
step() {
  [ -z "$running" ] || step_done
  running=$* began=$SECONDS
  printf '\n== %s\n' "$running"
}
step_done() {
  local line
  printf -v line '%5d s  %s' "$((SECONDS - began))" "$running"
  taken+=("$line")
  printf -- '-- %s\n' "$line"
}
# Also where a step fails: the last one is then the one that did.
all_done() {
  step_done
  printf '\n== %d seconds in all\n' "$SECONDS"
  printf '%s\n' "${taken[@]}"
}
running='' began=0 taken=()
trap all_done EXIT
skip() { printf 'skipped: %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }
nightly() { cargo +nightly --version >/dev/null 2>&1; }

export CARGO_TERM_COLOR=never
export RUST_BACKTRACE=0
# Everything is compiled once here: what only helps to compile again, or to step
# through it, is left out.
export CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=line-tables-only
host=$(rustc -vV | sed -n 's/^host: //p')

step "format"
cargo fmt --check

step "leftovers"
if grep -rnE 'TODO|FIXME|todo!|unimplemented!|dbg!' src tests examples benches fuzz/fuzz_targets --include='*.rs'; then
  echo "error: leftovers above" >&2
  exit 1
fi
while read -r file; do
  lines=$(awk '/#\[cfg\(test\)\]/ { exit } { n++ } END { print n + 0 }' "$file")
  if [ "$lines" -gt 450 ]; then
    echo "error: $file has $lines lines before its tests" >&2
    exit 1
  fi
done < <(find src -name '*.rs')

step "lints"
for features in "" "cuda" "dlpack" "pte" "safetensors" "serde" "testing" "tracing" "cuda dlpack pte safetensors serde testing tracing"; do
  cargo clippy --quiet --lib --no-default-features --features "$features" -- -D warnings
done
cargo clippy --quiet --all-targets --all-features -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --all-features --document-private-items

step "the commands of the README, in a clean clone"
bash ci/readme.sh

step "the fake driver"
cargo clippy --quiet -p fake-cuda --all-targets -- -D warnings
cargo test --quiet -p fake-cuda

step "the released ExecuTorch runtime"
bash ci/interop.sh

step "tensors of candle"
bash ci/candle.sh

step "beside other choices of cudarc"
bash ci/cuda-features.sh

step "kernels of an example to PTX"
bash ci/ptx.sh

step "the checks for hardware, built to be carried"
bash ci/gpu.sh build >/dev/null
if [ "$(uname -s)" = Linux ]; then
  # The last lines say on what it ran.
  rehearsal=$(bash ci/gpu.sh rehearse 2>&1) || { echo "$rehearsal"; exit 1; }
  grep -E '^== |^test result' <<<"$rehearsal"
fi
carried=$(target/gpu/run.sh --allow-skip 2>&1) || { echo "$carried"; exit 1; }
tail -n 1 <<<"$carried"

step "release"
cargo test --quiet --release --all-features --tests

step "without features"
cargo test --quiet --no-default-features --lib --test buffer --test registry --test placement --test tensor \
  --test words --test plan --test graph --test runner

step "all interleavings of the counters and the ledger"
RUSTFLAGS="--cfg loom" cargo test --quiet --lib --target-dir target/loom models::

step "benches run"
cargo bench --quiet --all-features --bench paths -- --test >/dev/null

step "instructions of the CUDA back end, on the fake driver"
bash benches/cuda_instructions.sh

if nightly; then
  step "error codes of compile-fail examples"
  cargo +nightly test --quiet --all-features --doc
  step "address and leak sanitizer"
  # The tests that reach unsafe code; those of plans, graphs and words are pure data.
  with_unsafe=(adaptor allocations buffer cuda cuda_absent cuda_allocations cuda_process cuda_transfers dlpack
    free_failure gpu launch model moe placement process pte registry runner tensor testing_kit threads weights)
  PROPTEST_CASES=32 \
    ASAN_OPTIONS=allocator_may_return_null=1 RUSTFLAGS="-Zsanitizer=address -Clink-arg=-rdynamic" \
    cargo +nightly test --quiet --all-features --target "$host" --target-dir target/asan \
    --lib "${with_unsafe[@]/#/--test=}" -- --skip nested_cargo
  skip "under the sanitizer, a driver that lacks a function: the sanitizer looks its names up itself"
  if cargo +nightly miri --version >/dev/null 2>&1; then
    step "miri"
    MIRIFLAGS="-Zmiri-strict-provenance -Zmiri-tree-borrows -Zmiri-disable-isolation" PROPTEST_CASES=4 \
      cargo +nightly miri test --features testing --test buffer --test registry --test placement --test tensor
  else
    skip "miri is not installed"
  fi
  if have cargo-fuzz; then
    step "fuzzing, one minute"
    (cd fuzz && cargo +nightly fuzz run read_program -- -max_total_time=60)
  else
    skip "cargo-fuzz is not installed"
  fi
else
  skip "no nightly: error codes of compile-fail examples, sanitizers, miri, fuzzing"
fi

if have valgrind; then
  step "valgrind"
  # Threads that wait for each other take turns, else one may keep the others off for minutes.
  runner="valgrind --quiet --fair-sched=try --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite"
  export "CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER=$runner"
  PROPTEST_CASES=8 cargo test --quiet --features testing --test buffer --test registry --test placement
  unset "CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER"
else
  skip "valgrind is not installed"
fi

if have cargo-deny; then
  step "licences and bans"
  cargo deny check bans licenses sources
else
  skip "cargo-deny is not installed"
fi
if cargo llvm-cov --version >/dev/null 2>&1; then
  step "coverage"
  cargo llvm-cov --all-features --summary-only
else
  skip "cargo-llvm-cov is not installed"
fi

step "all passed"
