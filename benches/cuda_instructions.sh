#!/usr/bin/env bash
# Counts the instructions of allocating, freeing and copying through the fake
# driver, raw and through the CUDA back end, as instructions.sh does, and fails if
# the back end takes more than 1.15 times as many.
#
# What is spent in the fake's functions is counted apart, and of that what only
# looks something up: the fake is no measure of a driver, so a ratio alone would
# say little.
set -euo pipefail
cd "$(dirname "$0")/.."

# Hundredths of the raw calls.
limit=115

command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed"; exit 0; }

program=$(cargo bench --quiet --features cuda --bench cuda_instructions --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*cuda_instructions[^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "error: the bench was not built" >&2; exit 1; }
profile=$(mktemp)
trap 'rm -f "$profile"' EXIT

# count OPERATION COUNT -> instructions: all, in the fake's functions, in those
# that only look something up
count() {
  valgrind --quiet --tool=callgrind --callgrind-out-file="$profile" "$program" "$1" "$2"
  callgrind_annotate --inclusive=yes --threshold=100 "$profile" | awk '
    { spent = $1; gsub(",", "", spent) }
    /PROGRAM TOTALS/ { all = spent }
    / [^ ]*:cu[A-Z][A-Za-z0-9_]* \[[^]]*libfakecuda/ { fake += spent }
    / [^ ]*:(cuCtxGetCurrent|cuStreamIsCapturing) \[[^]]*libfakecuda/ { found += spent }
    END { print all, fake + 0, found + 0 }'
}

# per OPERATION -> the same, of one
per() {
  local once twice
  once=$(count "$1" 2000)
  twice=$(count "$1" 4000)
  awk -v once="$once" -v twice="$twice" 'BEGIN {
    split(once, a); split(twice, b)
    for (i = 1; i <= 3; i++) printf "%d ", (b[i] - a[i]) / 2000
  }'
}

over=0
printf '%-16s %21s %30s\n' '' 'raw' 'here'
printf '%-16s %6s %7s %6s %6s %7s %8s %6s %7s\n' operation all driver else all driver look-ups else ratio
for operation in on_stream synchronous copy_on_stream copy; do
  read -r raw raw_fake _ <<<"$(per "raw_$operation")"
  read -r here fake found <<<"$(per "$operation")"
  [ "$raw" -gt 0 ] && [ "$raw_fake" -gt 0 ] || { echo "error: nothing was counted" >&2; exit 1; }
  ratio=$(awk "BEGIN { printf \"%.3f\", $here / $raw }")
  printf '%-16s %6d %7d %6d %6d %7d %8d %6d %7s\n' "$operation" \
    "$raw" "$raw_fake" $((raw - raw_fake)) "$here" "$fake" "$found" $((here - fake)) "$ratio"
  if [ $((here * 100)) -gt $((raw * limit)) ]; then
    echo "error: $operation: $ratio is more than $((limit / 100)).$((limit % 100))" >&2
    over=1
  fi
done
exit "$over"
