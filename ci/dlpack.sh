#!/usr/bin/env bash
# Tensors to NumPy and back as DLPack, on the host. Opt-in: it needs the package
# index for NumPy, and prints a skip where that can not be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
if ! python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$work" 'numpy>=2.1'; then
  echo "skipped: NumPy can not be fetched"
  exit 0
fi
cargo build --quiet --example dlpack_library --no-default-features --features dlpack
target=${CARGO_TARGET_DIR:-target}
library=$(find "$target/debug/examples" -maxdepth 1 \( -name 'libdlpack_library.so' -o -name 'libdlpack_library.dylib' \) | head -n 1)
PYTHONPATH=$work python3 ci/dlpack.py "$library"
