#!/usr/bin/env bash
# Opens what the recorder writes in the programs that read it. Not part of the
# gate: it needs a Python with PyTorch ($PYTHON, or python3) and takes a browser if
# there is one ($BROWSER, or chromium), which writes a picture to look at.
#
#   ci/viewers.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-$(mktemp -d)}
python=${PYTHON:-python3}
browser=${BROWSER:-chromium}
cargo run --quiet --features testing --example 08_look_at_memory -- "$folder" >/dev/null
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
  for mode in light dark; do
    flags=()
    if [ "$mode" = dark ]; then flags=(--force-dark-mode); fi
    "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
      --disable-background-networking --disable-component-update --disable-sync \
      --user-data-dir="$profile" --window-size=1200,1500 "${flags[@]}" \
      --screenshot="$folder/$mode.png" "file://$folder/memory.html" 2>/dev/null
    echo "look at $folder/$mode.png"
  done
  rm -rf "$profile"
else
  echo "skipped: there is no $browser"
fi
