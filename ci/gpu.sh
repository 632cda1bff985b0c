#!/usr/bin/env bash
# The checks on hardware, for a machine that has a GPU and neither Rust nor a network.
#
#   ci/gpu.sh build [DIR]               builds the tests, the bench and the example moe, and
#                                       copies them, its models, its kernels if ci/ptx.sh
#                                       has compiled them, this script as run.sh, and
#                                       gpu_bench.py into DIR
#   ci/gpu.sh run [--allow-skip] [DIR]  runs what is in DIR
#   DIR/run.sh [--allow-skip]           the same, where DIR was carried to
#   ci/gpu.sh rehearse [DIR]            runs the tests in DIR on the simulated driver, to
#                                       see that they work: that says nothing of a GPU
#
# DIR is target/gpu unless said. Without a GPU a run fails; with --allow-skip the tests
# say what they skip and pass. All that is printed goes to DIR/results.txt as well. A run
# takes less than six minutes: each part has its own limit, and is over then.
#
# The programs need the C library of the machine that they are built on, or a newer one:
# build.txt says which. Build on a system as old as the one with the GPU.
set -euo pipefail

step() { printf '\n== %s\n' "$*"; }
skip() { printf 'skipped: %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}
usage() {
  die "usage: gpu.sh build [DIR] | gpu.sh run [--allow-skip] [DIR] | gpu.sh rehearse [DIR] | run.sh [--allow-skip]"
}

here=$(cd "$(dirname "$0")" && pwd)
self=$here/$(basename "$0")

# Seconds for each part, for a question to the machine, of which there are three, and for
# what does not end when it is told to. All together stay under six minutes.
tests_limit=120
sanitizer_limit=70
bench_limit=48
moe_limit=14
python_limit=25
question_limit=10
grace=4

# What compute-sanitizer runs, without looking at what waits, as it may wait itself: all
# that copies and orders, without the tests that fill the device, repeat a thousand times,
# move hundreds of mebibytes or start processes.
sanitized=(conforms::device_memory_conforms conforms::a_handle_on_a_stream_conforms
  copies::a_ copies::every_ copies::parts_ streams:: interop::memory_ interop::a_view_
  shared_memory:: threads::memory_ transfers::a_scope_ transfers::copies_ transfers::memory_)

# ---- build

# Builds one target, and says where its program of this name is.
program() {
  local name=$1
  shift
  cargo "$@" --message-format=json |
    sed -n 's/.*"name":"'"$name"'".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

# Copies a program without its symbols, and checks that it needs nothing but the system.
take() {
  local from=$1 to=$2 foreign
  [ -n "$from" ] && [ -x "$from" ] || die "cargo named no program for $to"
  cp "$from" "$to"
  if have strip; then strip "$to"; fi
  foreign=$(ldd "$to" |
    grep -vE '^[[:space:]]*(linux-vdso\.so\.1|/lib(64)?/ld-linux[^ ]*|lib(c|m|gcc_s|dl|pthread|rt)\.so\.[0-9]+ )' || true)
  [ -z "$foreign" ] || die "$to needs more than the system has: $foreign"
}

build() {
  local dir=$1 commit kib
  cd "$here/.."
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  rm -f "$dir/gpu-tests" "$dir/gpu-bench" "$dir/gpu_bench.py" "$dir/run.sh" "$dir/build.txt"
  rm -f "$dir/gpu-moe" "$dir/moe.ptx"
  step "tests"
  take "$(program gpu test --release --test gpu --all-features --no-run)" "$dir/gpu-tests"
  step "bench"
  take "$(program gpu bench --bench gpu --all-features --no-run)" "$dir/gpu-bench"
  step "moe"
  take "$(program moe build --release --example moe --all-features)" "$dir/gpu-moe"
  mkdir -p "$dir/moe"
  cp tests/data/moe/*.json tests/data/moe/*.safetensors "$dir/moe/"
  if [ target/moe.ptx -nt examples/moe/kernels.cu ]; then
    cp target/moe.ptx "$dir/moe.ptx"
  fi
  cp ci/gpu_bench.py "$dir/gpu_bench.py"
  cp "$self" "$dir/run.sh"
  chmod +x "$dir/run.sh"

  commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
  [ -z "$(git status --porcelain 2>/dev/null)" ] || commit="$commit, with changes"
  {
    echo "commit: $commit"
    echo "compiler: $(rustc --version)"
    echo "needs: $(needed_libc "$dir/gpu-tests" "$dir/gpu-bench" "$dir/gpu-moe") or newer"
  } >"$dir/build.txt"
  kib=$(du -sk "$dir" | cut -f1)
  [ "$kib" -lt 65536 ] || die "$dir has $kib KiB, which is more than 64 MiB"
  step "built, $kib KiB"
  cat "$dir/build.txt"
}

# The newest version of the C library that programs ask for.
needed_libc() {
  local newest
  newest=$(grep -aohE 'GLIBC_[0-9]+\.[0-9]+' "$@" | sort -uV | tail -n 1)
  echo "${newest:-an unknown C library}"
}

# ---- run

failed=()

ask() { timeout -k "$grace" "$question_limit" "$@" </dev/null; }

# Runs a part under its limit. If it fails, the others are run all the same.
part() {
  local name=$1 limit=$2 begin=$SECONDS code=0
  shift 2
  timeout -k "$grace" "$limit" "$@" </dev/null || code=$?
  case $code in
  0) ;;
  124 | 137)
    echo "error: $name: not done after $limit seconds"
    failed+=("$name")
    ;;
  3) # Something that it said is missing.
    [ "$allow_skip" = 1 ] || failed+=("$name")
    ;;
  *)
    echo "error: $name: exit code $code"
    failed+=("$name")
    ;;
  esac
  echo "$name: $((SECONDS - begin)) seconds"
}

sanitizer() {
  local options=(--tool memcheck --error-exitcode 99 --report-api-errors no
    --target-processes application-only) help
  if ! have compute-sanitizer; then
    skip "compute-sanitizer is not installed"
    return
  fi
  if [ -n "$no_gpu" ]; then
    skip "compute-sanitizer, as there is no GPU"
    return
  fi
  help=$(ask compute-sanitizer --help 2>&1 || true)
  if grep -q -- --track-stream-ordered-races <<<"$help"; then
    options+=(--track-stream-ordered-races all)
  else
    skip "tracking of stream-ordered memory, which this compute-sanitizer can not do"
  fi
  part "compute-sanitizer" "$sanitizer_limit" \
    env DEVICE_MEMORY_GPU_NO_GATES=1 compute-sanitizer "${options[@]}" \
    "$dir/gpu-tests" --test-threads=1 --nocapture "${sanitized[@]}"
}

# A mixture of experts, decoded on the GPU and compared with its reference.
moe() {
  local stem
  export -f decode
  export dir no_gpu
  for stem in qwen3_moe_tiny qwen3_5_moe_tiny; do
    part "$stem" "$moe_limit" bash -c 'decode "$1"' decode "$dir/moe/$stem"
  done
}

# By kernels that are compiled now. Where none can be, as without an NVRTC or with one that
# is newer than the driver, by those that were compiled before.
decode() {
  local code=0
  "$dir/gpu-moe" "$1" --cuda || code=$?
  if [ "$code" = 3 ] && [ -z "$no_gpu" ] && [ -f "$dir/moe.ptx" ]; then
    echo "again, by kernels that were compiled before:"
    code=0
    "$dir/gpu-moe" "$1" --cuda --ptx "$dir/moe.ptx" || code=$?
  fi
  return "$code"
}

run_all() {
  local seen no_gpu=
  step "the machine"
  cat "$dir/build.txt" 2>/dev/null || true
  date -u '+date: %Y-%m-%d %H:%M UTC'
  uname -srm
  if have nvidia-smi; then
    ask nvidia-smi --format=csv \
      --query-gpu=index,name,driver_version,memory.total,memory.used,compute_mode ||
      skip "nvidia-smi, which fails"
  else
    skip "nvidia-smi is not installed"
  fi
  seen=$(ask "$dir/gpu-bench" --probe 2>&1) || seen="skipped: the probe fails: $seen"
  echo "$seen"
  case $seen in skipped:*) no_gpu=${seen#skipped: } ;; esac

  step "tests"
  part "tests" "$tests_limit" "$dir/gpu-tests" --test-threads=1 --nocapture

  step "a mixture of experts"
  moe

  step "compute-sanitizer"
  sanitizer

  step "bench"
  part "bench" "$bench_limit" "$dir/gpu-bench"

  step "other allocators, from Python"
  if have python3; then
    # What is wrong with it is not this crate's.
    timeout -k "$grace" "$python_limit" python3 "$dir/gpu_bench.py" </dev/null ||
      skip "what is left of it: exit code $?"
  else
    skip "python3 is not installed"
  fi

  if [ "${#failed[@]}" -gt 0 ]; then
    step "FAILED: ${failed[*]}"
    if [ -n "$no_gpu" ]; then
      echo "This machine can not run the checks: $no_gpu. With --allow-skip that is no failure."
    fi
    return 1
  fi
  if [ -n "$no_gpu" ]; then
    step "nothing was tested: $no_gpu"
  else
    step "all passed"
  fi
}

run() {
  dir=$1
  [ -x "$dir/gpu-tests" ] && [ -x "$dir/gpu-bench" ] && [ -x "$dir/gpu-moe" ] ||
    die "nothing is built in $dir"
  have timeout || die "timeout is not installed"
  dir=$(cd "$dir" && pwd)
  export RUST_BACKTRACE=0
  if [ "$allow_skip" = 1 ]; then
    unset DEVICE_MEMORY_GPU
  else
    export DEVICE_MEMORY_GPU=1
  fi
  run_all 2>&1 | tee "$dir/results.txt"
}

# ---- rehearse

# On the simulated driver of tests/fake-cuda, which is not in DIR and never carried. It
# loads no kernels, so moe is not among what is rehearsed. What
# is done wrong, such as a free that does not wait, is seen by the simulation and fails.
rehearse() {
  local dir=$1 driver library commands schedules
  [ -x "$dir/gpu-tests" ] || die "nothing is built in $dir"
  have timeout || die "timeout is not installed"
  dir=$(cd "$dir" && pwd)
  cd "$here/.."
  library=$(cargo build --quiet --release -p fake-cuda --message-format=json |
    sed -n 's/.*"\([^"]*libfakecuda\.so\)".*/\1/p' | tail -n 1)
  [ -f "$library" ] || die "the simulated driver was not built"
  driver=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$driver'" EXIT
  ln -s "$library" "$driver/libcuda.so"
  commands="devices 2; reuse 1; total_memory 8589934592"
  for schedules in "schedule eager" "schedule delayed" "schedule random 7" \
    "schedule delayed; attribute 0 115 0; attribute 1 115 0; peer_access 0"; do
    step "a rehearsal on the simulated driver, no GPU: $schedules"
    # One test makes a mistake on purpose, which the simulation reports.
    env LD_LIBRARY_PATH="$driver" FAKECUDA_COMMANDS="$commands; $schedules" \
      FAKECUDA_VIOLATION_EXIT=43 DEVICE_MEMORY_GPU=1 \
      timeout -k "$grace" "$tests_limit" "$dir/gpu-tests" --test-threads=1 --nocapture \
      --skip a_free_that_was_not_told_of_a_stream_does_not_wait_for_it </dev/null
  done
  step "rehearsed on the simulated driver; nothing was tested on a GPU"
}

# ---- which of them

mode=
allow_skip=0
dir=
if [ "$(basename "$self")" = run.sh ]; then
  mode=run
  dir=$here
else
  mode=${1:-}
  [ $# -eq 0 ] || shift
fi
for argument in "$@"; do
  case $argument in
  --allow-skip) allow_skip=1 ;;
  -*) usage ;;
  *)
    [ -z "$dir" ] || usage
    dir=$argument
    ;;
  esac
done
case $mode in
build) build "${dir:-$here/../target/gpu}" ;;
run) run "${dir:-$here/../target/gpu}" ;;
rehearse) rehearse "${dir:-$here/../target/gpu}" ;;
*) usage ;;
esac
