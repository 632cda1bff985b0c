#!/usr/bin/env bash
# Runs interop/executorch: fetches the released runtime and libclang, builds, tests.
# Prints a skip where the registries can not be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${CARGO_TARGET_DIR:-$PWD/target}/interop
mkdir -p "$cache"

fetch() { # DIRECTORY PACKAGE
  [ -d "$cache/$1.done" ] || {
    python3 -m pip install --quiet --no-deps --target "$cache/$1" "$2" && mkdir "$cache/$1.done"
  }
}
fetch wheel executorch==1.5.1 || { echo "skipped: executorch 1.5.1 can not be fetched"; exit 0; }
fetch clang libclang || { echo "skipped: libclang can not be fetched"; exit 0; }
cargo fetch --quiet || { echo "skipped: crates can not be fetched"; exit 0; }

export EXECUTORCH_RS_LINK=0 EXECUTORCH_RUNTIME=$cache/wheel/executorch
export LIBCLANG_PATH=$cache/clang/clang/native
BINDGEN_EXTRA_CLANG_ARGS="-I$(gcc -print-file-name=include)"
export BINDGEN_EXTRA_CLANG_ARGS
cargo clippy --quiet -p interop-executorch --features runtime --all-targets -- -D warnings
cargo test --quiet -p interop-executorch --features runtime
