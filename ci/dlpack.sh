#!/usr/bin/env bash
# Tensors to NumPy and back as DLPack, on the host. Opt-in: it needs the package
# index for NumPy, and prints a skip where that can not be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
pip=(python3 -m pip --disable-pip-version-check --retries 2 --timeout 20)
if ! "${pip[@]}" install --quiet --root-user-action ignore --target "$work" 'numpy>=2.1'; then
  # pip says the same of an index that it can not reach and of a package that is not
  # there, so ask for one that is.
  "${pip[@]}" download --quiet --no-deps --dest "$work/probe" pip >/dev/null 2>&1 ||
    { echo "skipped: the package index can not be reached"; exit 0; }
  echo "error: NumPy can not be fetched from an index that can be reached" >&2
  exit 1
fi
cargo build --quiet --example dlpack_library --no-default-features --features dlpack
target=${CARGO_TARGET_DIR:-target}
library=$(find "$target/debug/examples" -maxdepth 1 \( -name 'libdlpack_library.so' -o -name 'libdlpack_library.dylib' \) | head -n 1)
PYTHONPATH=$work python3 ci/dlpack.py "$library"
