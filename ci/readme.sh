#!/usr/bin/env bash
# Runs the two commands of README.md as it prints them, in a clean clone of what
# is committed, so that they are known to do all set-up themselves. What other crates
# are compiled to is shared with the gate; the clone's own crates are compiled anew.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)

clone=$(mktemp -d)
trap 'rm -rf "$clone"' EXIT
git clone --quiet "$top" "$clone"
cd "$clone"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$top/target}"

# The commands are the lines of the first shell block under "Two commands".
mapfile -t commands < <(awk '
  /^## Two commands/ { section = 1 }
  section && /^```sh/ { block = 1; next }
  block && /^```/ { exit }
  block && /^cargo / { print }
' README.md)
[ "${#commands[@]}" -eq 2 ] || { echo "error: README.md shows ${#commands[@]} commands, not 2" >&2; exit 1; }

for command in "${commands[@]}"; do
  printf '$ %s\n' "$command"
  bash -c "$command"
done
