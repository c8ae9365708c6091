"""Peak of the CPU allocator: its events while training steps run."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from aam.network.batches import Batch
from aam.network.memory_prediction import TrainingSteps

STEP = "measured step"


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of memory: its bytes, and when it is allocated and freed; None if never."""

    size: int
    begin: float
    end: float | None


def allocated_peak(make: Callable[[], TrainingSteps], trace: Path, steps: int = 1) -> int:
    """Return the peak of the steps after the first in bytes, the least of several.

    The profiler records what its thread allocates and frees. A thread of gloo that is the last to
    hold a tensor frees it unrecorded, so some steps seem to hold more than they do, never less.

    Args:
        make: builds network and batch.
    """
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        training = make()
        training.run()
        for _ in range(steps):
            with torch.profiler.record_function(STEP):
                training.run()
        del training
        gc.collect()
    profile.export_chrome_trace(str(trace))
    events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    found = blocks([event for event in events if event["name"] == "[memory]"])
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == STEP]
    return min(peak(found, *span) for span in spans)


def blocks(events: list[dict[str, Any]]) -> list[Block]:
    """Return the blocks of events of the allocator."""
    found: list[Block] = []
    live: dict[int, Block] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if (before := live.pop(address, None)) is not None:
            found.append(dataclasses.replace(before, end=event["ts"]))
        if size > 0:
            live[address] = Block(size, event["ts"], None)
    return found + list(live.values())


def peak(found: list[Block], begin: float, end: float) -> int:
    """Return the most bytes at any time of a step.

    After the steps everything is freed, so a block of an earlier step without an end was freed
    unrecorded, and does not count.
    """
    counted = [b for b in found if b.begin < end and (b.begin >= begin or (b.end or 0) > begin)]
    changes = [(max(b.begin, begin), b.size) for b in counted]
    changes += [(b.end, -b.size) for b in counted if b.end is not None]
    live = most = 0
    for _, change in sorted(changes):  # of one time, what is freed comes first
        live += change
        most = max(most, live)
    return most


def copy(batch: Batch) -> Batch:
    """Copy the tensors of a batch, so that the allocator counts them."""
    copies: dict[str, Any] = {
        name: value.clone() for name, value in vars(batch).items() if torch.is_tensor(value)
    }
    return dataclasses.replace(batch, **copies)
