#!/usr/bin/env bash
# Tensors to NumPy and back as DLPack, on the host. Opt-in: prints a skip where the
# package index, which has NumPy, can not be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { printf 'skipped: tensors to NumPy: %s\n' "$*"; exit 0; }
. ci/fetch.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch_wheel "$work/numpy" 'numpy>=2.1'
cargo build --quiet --example dlpack_library --no-default-features --features dlpack
target=${CARGO_TARGET_DIR:-target}
library=$(find "$target/debug/examples" -maxdepth 1 \( -name 'libdlpack_library.so' -o -name 'libdlpack_library.dylib' \) | head -n 1)
PYTHONPATH=$work/numpy python3 ci/dlpack.py "$library"
