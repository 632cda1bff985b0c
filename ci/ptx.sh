#!/usr/bin/env bash
# Compiles the kernels of examples/moe to PTX, by NVRTC, as the example does it at run
# time, and checks that they are those that the example names. Needs no GPU.
#
#   ci/ptx.sh [FILE]    FILE is target/moe.ptx unless said
#
# NVRTC is the machine's, or one of PyPI that is kept in target; prints a skip where there
# is none and the package index can not be reached.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { printf 'skipped: kernels to PTX: no NVRTC here, and %s\n' "$*"; exit 0; }
. ci/fetch.sh

file=${1:-target/moe.ptx}
kept=$PWD/target/nvrtc-13.0
mkdir -p target "$(dirname "$file")"
work=$(mktemp -d target/ptx.XXXXXX)
trap 'rm -rf "$work"' EXIT

compile() {
  cargo run --quiet --release --all-features --example moe -- --compile "$file"
}

code=0
said=$(compile 2>&1) || code=$?
if [ "$code" = 3 ]; then
  fetch_wheel "$kept" 'nvidia-cuda-nvrtc==13.0.*'
  code=0
  libraries=$(dirname "$(find "$kept" -name 'libnvrtc.so*' | head -n 1)")
  said=$(LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" compile 2>&1) || code=$?
fi
if [ "$code" != 0 ]; then
  echo "$said" >&2
  exit 1
fi

named=$(sed -n 's/^ *Self::[A-Za-z]*\( {[^}]*}\)\{0,1\} => "\([a-z_]*\)",$/\2/p' examples/moe/kernel.rs | sort)
found=$(sed -n 's/^.*\.entry \([a-z_]*\)(.*$/\1/p' "$file" | sort)
if [ -z "$named" ] || [ "$named" != "$found" ]; then
  echo "error: kernels that kernel.rs names and those in $file differ:" >&2
  diff <(echo "$named") <(echo "$found") >&2 || true
  exit 1
fi
echo "$(wc -l <<<"$named") kernels compiled to PTX: $(wc -c <"$file") bytes"
