#!/usr/bin/env bash
# Runs interop/candle, which puts a tensor of candle over memory of this crate and
# back, on the host; and lints its form for CUDA devices, which holds that for the host.
# Prints a skip where the registry of crates can not be reached. Whatever else fails is
# a failure.
#
# The kernels of candle are compiled by nvcc. In its place there is a stand-in that
# writes empty files: what Rust sees is the same, no kernel is compiled, and nothing of
# that form can run. With nvcc and a GPU, the form itself is built and run by
# `cargo run -p device-memory-candle --features cuda`.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! cargo fetch --quiet 2>"$work/log"; then
  if grep -qiE 'resolve host|connect|timed out|network' "$work/log"; then
    echo "skipped: interop/candle: the registry of crates can not be reached"
    exit 0
  fi
  cat "$work/log" >&2
  exit 1
fi

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
