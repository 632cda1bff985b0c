#!/usr/bin/env bash
# Opens what the recorder and the planner write in the programs that read it. Not part
# of the gate: it takes PyTorch's viewer code from the PyTorch of a Python ($PYTHON, or
# python3), and a browser if there is one ($BROWSER, or chromium), which writes pictures
# to look at. With FETCH_TORCH=1 it fetches PyTorch for that: the smallest of its wheels,
# of 139 MB, which is for another system, for of it only that code is run.
#
#   [FETCH_TORCH=1] ci/viewers.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
python=${PYTHON:-python3}
browser=${BROWSER:-chromium}
cargo run --quiet --features testing --example 08_look_at_memory -- "$folder" >/dev/null
for program in transformer_cpu two_devices; do
  cargo run --quiet --features pte --example plan_program -- "tests/data/pte/$program.pte" --html "$folder/$program.html"
done
echo "written to $folder"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "${FETCH_TORCH:-}" = 1 ]; then
  skip() { printf 'skipped: %s\n' "$*"; exit 0; }
  . ci/fetch.sh
  fetch_wheel "$work/torch" torch --platform macosx_14_0_arm64 --platform macosx_11_0_arm64
  export PYTHONPATH=$work/torch
fi
if "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
  "$python" - "$folder/memory.pickle" <<'PYTHON'
import importlib.util, pathlib, pickle, runpy, sys

# The code of the viewer needs nothing of PyTorch besides, which may not load here.
torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
spec = importlib.util.spec_from_file_location("memory_viz", torch / "cuda" / "_memory_viz.py")
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)
version = runpy.run_path(str(torch / "version.py"))["__version__"]

with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
summary = viz.segsum(snapshot)
events = viz.trace(snapshot)
pages = [viz.trace_plot(snapshot), viz.segment_plot(snapshot)]
assert all(page.lstrip().startswith("<!DOCTYPE html>") for page in pages)
print("torch", version, "-", len(snapshot["segments"]), "segments,",
      sum(map(len, snapshot["device_traces"])), "events,", len(events), "characters of trace")
print("\n".join(line for line in summary.splitlines() if line.startswith("total_")))
PYTHON
else
  echo "skipped: $python has no torch"
fi

if command -v "$browser" >/dev/null; then
  profile=$work/profile
  # Takes a picture of a page in both color schemes: NAME WIDTH,HEIGHT
  look() {
    local mode flags
    for mode in light dark; do
      flags=()
      if [ "$mode" = dark ]; then flags=(--force-dark-mode); fi
      "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
        --disable-background-networking --disable-component-update --disable-sync \
        --user-data-dir="$profile" --window-size="$2" "${flags[@]}" \
        --screenshot="$folder/$1-$mode.png" "file://$folder/$1.html" 2>/dev/null
      echo "look at $folder/$1-$mode.png"
    done
  }
  look memory 1200,1500
  look transformer_cpu 1560,640
  look two_devices 1560,1640
else
  echo "skipped: there is no $browser"
fi
