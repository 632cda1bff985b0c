#!/usr/bin/env bash
# Compiles the kernels of examples/moe to PTX, by NVRTC, as the example does it at run
# time, and checks that they are those that the example names. Needs no GPU.
#
#   ci/ptx.sh [FILE]    FILE is target/moe.ptx unless said
#
# NVRTC is the machine's, or one of PyPI that is kept in target/nvrtc; where neither can
# be had, this says so and passes.
set -euo pipefail
cd "$(dirname "$0")/.."

file=${1:-target/moe.ptx}
kept=target/nvrtc
package='nvidia-cuda-nvrtc==13.0.*'
mkdir -p "$kept" "$(dirname "$file")"

compile() {
  cargo run --quiet --release --all-features --example moe -- --compile "$file"
}
# Fetches the library, unless it was before.
fetch() {
  local work
  [ -z "$(find "$kept" -name 'libnvrtc.so*')" ] || return 0
  command -v python3 >/dev/null || return 1
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  python3 -m pip download --quiet --disable-pip-version-check --timeout 20 --retries 1 \
    --no-deps --dest "$work" "$package" >/dev/null 2>&1 || return 1
  python3 -m zipfile -e "$work"/*.whl "$kept"
}

code=0
said=$(compile 2>&1) || code=$?
if [ "$code" = 3 ]; then
  if ! fetch; then
    echo "skipped: kernels to PTX: no NVRTC here, and $package can not be fetched"
    exit 0
  fi
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
