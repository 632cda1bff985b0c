#!/usr/bin/env bash
# Counts the instructions of allocating and freeing through the fake driver, raw
# and through the CUDA back end, as instructions.sh does. The ratio must not pass
# 1.15.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed"; exit 0; }

program=$(cargo bench --quiet --features cuda --bench cuda_instructions --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*cuda_instructions[^"]*\)".*/\1/p' | tail -n 1)

# instructions OPERATION COUNT -> total
total() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# per OPERATION -> instructions of one
per() {
  local once twice
  once=$(total "$1" 2000)
  twice=$(total "$1" 4000)
  echo $(((twice - once) / 2000))
}

printf '%-14s %8s %8s %7s\n' family raw here ratio
for family in on_stream synchronous; do
  raw=$(per "raw_$family")
  here=$(per "$family")
  printf '%-14s %8d %8d %7s\n' "$family" "$raw" "$here" "$(awk "BEGIN { printf \"%.3f\", $here / $raw }")"
done
