#!/usr/bin/env bash
# Runs the pool beside its peers and puts the tables into benches/README.md,
# between the two marks there. Takes some minutes; the instructions need valgrind.
set -euo pipefail
cd "$(dirname "$0")"

tables=$(mktemp)
trap 'rm -f "$tables"' EXIT
cargo run --quiet --release >"$tables"

readme=../README.md
grep -q '^<!-- peers -->$' "$readme" && grep -q '^<!-- end of peers -->$' "$readme" ||
  { echo "error: $readme has no marks" >&2; exit 1; }
written=$(awk -v tables="$tables" '
  /^<!-- peers -->$/ { print; print ""; while ((getline line < tables) > 0) print line; skip = 1 }
  /^<!-- end of peers -->$/ { skip = 0 }
  !skip { print }
' "$readme")
printf '%s\n' "$written" >"$readme"
