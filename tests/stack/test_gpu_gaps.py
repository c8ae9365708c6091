"""benchmarks/gpu_gaps.py: what a GPU waits for, of traces whose gaps are known."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from benchmarks.gpu_gaps import gaps, synchronizations


def event(kind: str, name: str, start: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": end - start, "tid": 1}


def test_each_gap_is_that_of_what_the_cpu_did_in_it() -> None:
    trace = [
        event("gpu_memcpy", "Memcpy HtoD", 0, 10),
        event("kernel", "gemm", 10, 20),
        # 20 to 30: the network waits for a batch, and for nothing else.
        event("user_annotation", "enumerate(DataLoader)#_MultiProcessing.__next__", 20, 30),
        event("kernel", "gemm", 30, 40),
        # 40 to 60: half of it in a synchronisation, which an operation has caused.
        event("cpu_op", "aten::item", 38, 52),
        event("cpu_op", "aten::_local_scalar_dense", 39, 51),
        event("cuda_runtime", "cudaStreamSynchronize", 40, 50),
        event("cuda_runtime", "cudaLaunchKernel", 52, 60),
        event("kernel", "gemm", 60, 100),
        {"ph": "i", "name": "a mark without a duration", "ts": 5},
    ]
    found = gaps(trace, steps=2)
    shares = {name: found[name] for name in ("busy", "transfer", "loader", "waiting", "launching")}
    assert shares == pytest.approx(
        {"busy": 0.7, "transfer": 0.1, "loader": 0.1, "waiting": 0.1, "launching": 0.1}
    )
    assert found["waits"] == {"aten::item": 0.5}
    assert found["kernels"] == 2


def test_a_trace_of_a_cpu_has_its_operations_in_the_place_of_kernels() -> None:
    trace = [event("cpu_op", "aten::mm", 0, 6), event("cpu_op", "aten::add", 8, 10)]
    assert gaps(trace, steps=1)["busy"] == pytest.approx(0.8)
    assert "failure" in gaps([], steps=1)


def test_synchronisations_are_counted_by_the_line_that_makes_them() -> None:
    with warnings.catch_warnings(record=True) as shown, synchronizations() as lines:
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["another"]
    ((place, number),) = lines.items()
    assert place.startswith("tests/stack/test_gpu_gaps.py:")
    assert number == 3
