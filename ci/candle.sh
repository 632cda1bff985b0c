#!/usr/bin/env bash
# Builds and runs the example that puts a tensor of candle over memory of this crate
# and back, on the host. Opt-in: candle is large. With `--cuda` it builds the form for
# CUDA devices instead, which needs nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --cuda ]; then
  command -v nvcc >/dev/null || { echo "skipped: nvcc is not installed"; exit 0; }
  cargo build --quiet -p device-memory-candle --features cuda
  echo "the form for CUDA builds"
  exit 0
fi
cargo run --quiet -p device-memory-candle
