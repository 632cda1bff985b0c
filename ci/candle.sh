#!/usr/bin/env bash
# Tests and runs interop/candle, which puts a tensor of candle over memory of this crate
# and back, on the host; and lints its form for CUDA devices, which holds that for the host.
# Prints a skip where the registry of crates can not be reached. Whatever else fails is
# a failure.
#
# The kernels of candle are compiled by nvcc. In its place there is a stand-in that
# writes empty files: what Rust sees is the same, no kernel is compiled, and nothing of
# that form can run. With nvcc and a GPU, the form itself is built and run by
# `cargo run -p device-memory-candle --features cuda`.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { printf 'skipped: interop/candle: %s\n' "$*"; exit 0; }
. ci/fetch.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch_crates

cargo test --quiet --package device-memory-candle
cargo run --quiet --package device-memory-candle

cat >"$work/nvcc" <<'NVCC'
#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
  -o) : >"$2" ;;
  --output-directory) folder=$2 ;;
  *.cu) kernels=$(basename "$1" .cu).ptx ;;
  --version) echo "Cuda compilation tools, release 13.0, V13.0.0" ;;
  esac
  shift
done
[ -z "${folder:-}" ] || : >"$folder/$kernels"
NVCC
chmod +x "$work/nvcc"
# Apart, so that no empty kernel ends in what is built with nvcc.
NVCC=$work/nvcc CUDA_COMPUTE_CAP=80 CUDARC_CUDA_VERSION=13000 \
  cargo clippy --quiet --package device-memory-candle --features cuda --no-deps --all-targets \
  --target-dir "${CARGO_TARGET_DIR:-target}/candle-without-nvcc" -- -D warnings
echo "the form for CUDA compiles, with a stand-in for nvcc; nothing of it was run"
