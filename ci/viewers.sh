#!/usr/bin/env bash
# Opens what the recorder and the planner write in the programs that read it. Not part
# of the gate: it needs a Python with PyTorch ($PYTHON, or python3) and takes a browser
# if there is one ($BROWSER, or chromium), which writes pictures to look at.
#
#   ci/viewers.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-$(mktemp -d)}
python=${PYTHON:-python3}
browser=${BROWSER:-chromium}
cargo run --quiet --features testing --example 08_look_at_memory -- "$folder" >/dev/null
for program in transformer_cpu two_devices; do
  cargo run --quiet --features pte --example plan_program -- "tests/data/pte/$program.pte" --html "$folder/$program.html"
done
echo "written to $folder"

if "$python" -c 'import torch' 2>/dev/null; then
  "$python" - "$folder/memory.pickle" <<'PYTHON'
import pickle, sys
import torch
from torch.cuda import _memory_viz as viz

with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
summary = viz.segsum(snapshot)
events = viz.trace(snapshot)
pages = [viz.trace_plot(snapshot), viz.segment_plot(snapshot)]
assert all(page.lstrip().startswith("<!DOCTYPE html>") for page in pages)
print("torch", torch.__version__, "-", len(snapshot["segments"]), "segments,",
      sum(map(len, snapshot["device_traces"])), "events,", len(events), "characters of trace")
print("\n".join(line for line in summary.splitlines() if line.startswith("total_")))
PYTHON
else
  echo "skipped: $python has no torch"
fi

if command -v "$browser" >/dev/null; then
  profile=$(mktemp -d)
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
  rm -rf "$profile"
else
  echo "skipped: there is no $browser"
fi
