#!/usr/bin/env bash
# Counts the instructions of each operation of benches/instructions.rs under
# callgrind. The counts are exact and repeatable for one build; the clock is not
# looked at. Prints one line an operation: instructions, and the reference of the
# C++ original where there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || { echo "skipped: valgrind is not installed"; exit 0; }

features=${FEATURES:-pte}
program=$(cargo bench --quiet --features "$features" --bench instructions --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*instructions[^"]*\)".*/\1/p' | tail -n 1)

# instructions OPERATION COUNT -> total
total() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# per OPERATION COUNT -> instructions of one
per() {
  local once twice
  once=$(total "$1" "$2")
  twice=$(total "$1" $((2 * $2)))
  echo $(((twice - once) / $2))
}

loop=$(per nothing 1000)
row() { # name, instructions, reference
  local reference=${3:--}
  printf '%-28s %8d %8s\n' "$1" "$2" "$reference"
}

printf '%-28s %8s %8s\n' operation here C++
row registry_lookup $(($(per registry_lookup 1000) - loop)) 12
row registry_get $(($(per registry_get 1000) - loop))
row create_destroy $(($(per create_destroy 1000) - loop)) 78
row create_destroy_counted $(($(per create_destroy_counted 1000) - loop))
row offset_lookup $(($(per offset_lookup 1000) - loop)) 22
row offset_refused $(($(per offset_refused 1000) - loop)) 2274
row allocator_4_arenas $(($(per allocator_4_arenas 1000) - $(per allocator_4_arenas_setup 1000))) 53
row planned_4_arenas $(($(per planned_4_arenas 1000) - loop)) 1423
row add_cuda0.pte $(($(per add_cuda0 100) - loop))
row transformer_cuda0.pte $(($(per transformer_cuda0 20) - loop))

bare=$(per layer_none 1000)
printf '\n%-28s %8s\n' 'layer, create and drop' adds
for layer in aligned arena binning limit log pool pool_on_stream pool_search recorded_off recorded_on \
  recorded_segments_off recorded_segments_on retry shared statistics tracking; do
  row "$layer" $(($(per "layer_$layer" 1000) - bare)) ""
done
row 'poison, of 1 KiB on the host' $(($(per layer_poison 2000) - $(per layer_none_host 2000))) ""
