#!/usr/bin/env bash
# Shows that this crate conflicts with no other crate's choice of CUDA version or
# way of linking: builds it beside crates that make each choice of cudarc's. And that
# what its examples need of cudarc, NVRTC, is nobody else's.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for choice in \
  '"cuda-12080"' \
  '"cuda-13000"' \
  '"dynamic-linking"' \
  '"dynamic-loading"' \
  '"cuda-12080", "dynamic-linking"' \
  '"cuda-13000", "dynamic-loading"'; do
  mkdir -p "$work/src"
  cat >"$work/Cargo.toml" <<TOML
[package]
name = "beside"
version = "0.0.0"
edition = "2024"

[dependencies]
device-memory = { path = "$top", features = ["cuda"] }
cudarc = { version = "0.19.10", default-features = false, features = ["std", "driver", $choice] }

[workspace]
TOML
  cat >"$work/src/lib.rs" <<'RUST'
//! Uses both crates, so that they have to agree on cudarc.

/// A handle on a stream that the program made with its own cudarc.
pub fn on(
    stream: &std::sync::Arc<cudarc::driver::CudaStream>,
) -> device_memory::Result<device_memory::backend::cuda::CudaAllocator> {
    device_memory::backend::cuda::CudaAllocator::open()?.on_stream(stream)
}
RUST
  cargo check --quiet --offline --manifest-path "$work/Cargo.toml" --target-dir "$top/target/beside" ||
    cargo check --quiet --manifest-path "$work/Cargo.toml" --target-dir "$top/target/beside"
  echo "builds beside cudarc with $choice"
done

features=$(cargo tree --quiet --offline --manifest-path "$work/Cargo.toml" --edges features --invert cudarc)
if ! grep -q 'cudarc feature "driver"' <<<"$features" || grep -q 'cudarc feature "nvrtc"' <<<"$features"; then
  echo "error: the features of cudarc that a program gets are not these:" >&2
  echo "$features" >&2
  exit 1
fi
echo "brings no NVRTC"
