"""Peak of the CPU allocator: its events while two training steps run."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from aam.data.batches import Batch
from aam.performance.memory import TrainingSteps


def allocated_peak(make: Callable[[], TrainingSteps], trace: Path) -> int:
    """Return the peak of the second step in bytes; `make` builds network and batch."""
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        steps = make()
        steps.run()
        with torch.profiler.record_function("second step"):
            steps.run()
    profile.export_chrome_trace(str(trace))
    events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    begin = next(e["ts"] for e in events if e["name"] == "second step")
    live = peak = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"]):
        live += event["args"]["Bytes"]
        peak = max(peak, live) if event["ts"] >= begin else live
    return peak


def copy(batch: Batch) -> Batch:
    """Copy the tensors of a batch, so that the allocator counts them."""
    copies: dict[str, Any] = {
        name: value.clone() for name, value in vars(batch).items() if torch.is_tensor(value)
    }
    return dataclasses.replace(batch, **copies)
