"""Kernel profile of a GPU: kernels with calls and time, share of each category, idle time, verdict.

A profile is read from the output of a profiler (`aam.performance.profile_files`). Categories and
precision follow from kernel names, which differ between CUDA and ROCm, so that profiles of the two
are compared category by category.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelTime:
    """Total of all calls of one kernel, or of one direction of memory copies.

    Attributes:
        name: name in the profiler's output, without the suffix `.kd` of a kernel descriptor.
        calls: number of calls.
        total_ns: sum of their durations in nanoseconds.
    """

    name: str
    calls: int
    total_ns: float


@dataclass(frozen=True)
class KernelProfile:
    """Kernels of one run.

    Attributes:
        source: name of the profiler and its file format.
        kernels: kernels and memory copies, longest total first.
        span_ns: time from the start of the first to the end of the last; None in a file of totals.
        busy_ns: length of the union of their intervals; None in a file of totals.
        device: "GPU", or "CPU" for operations of PyTorch, each without those that it calls.
    """

    source: str
    kernels: tuple[KernelTime, ...]
    span_ns: float | None = None
    busy_ns: float | None = None
    device: str = "GPU"

    @property
    def total_ns(self) -> float:
        """Sum of the durations of all kernels and copies."""
        return sum(kernel.total_ns for kernel in self.kernels)

    @property
    def idle(self) -> float | None:
        """Fraction of the span in which no kernel ran; None without start times."""
        if not self.span_ns or self.busy_ns is None:
            return None
        return 1 - self.busy_ns / self.span_ns


CATEGORIES: tuple[tuple[str, str], ...] = (
    ("communication", r"nccl|rccl"),
    ("attention", r"attn_fwd|bwd_kernel_(dk|dq|fuse)|fmha|flash|scaled_dot_product"),
    ("memory copy", r"memcpy|copybuffer|fillbuffer|memset|^memory_copy|^memory copy"),
    ("matrix product", r"cijk_|gemm|cutlass|cublas|splitk|nvjet|mul_mat|matmul|^aten::(add|b)?mm$"),
    ("optimizer", r"multi_tensor_apply|adam|^optimizer|_foreach_"),
    ("normalization", r"layer_?norm|batch_?norm|rms_norm|softmax|soft_max"),
    ("indexing", r"index|gather|scatter|embedding|radixsort|embeddingbag"),
    ("reduction", r"reduce|^aten::(sum|mean|norm|linalg_vector_norm)$"),
    (
        "elementwise",
        r"elementwise|^aten::(add|sub|mul|div|copy|fill|bernoulli|where|clamp)_?$|distribution_|dropout|gelu|unary|binary|convert|quantize",
    ),
)
"""Category of a kernel -> pattern of its name in lower case; the first match counts.

The names are those of PyTorch, rocBLAS (Tensile: `Cijk_`), cuBLAS, aotriton and FlashAttention.
"""

OTHER = "other"

_TENSILE = r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_"
PRECISIONS: tuple[tuple[str, str], ...] = (
    ("bf16", rf"{_TENSILE}B_?[BS]S_|bf16|bfloat16"),
    ("fp16", rf"{_TENSILE}H_?[HS]S_|fp16|f16f16|hgemm|h16816|h1688|_h884"),
    ("fp64", rf"{_TENSILE}D_?B_|dgemm|f64f64"),
    ("fp32", rf"{_TENSILE}S_?B_|sgemm|f32f32|s1688|tf32|fp32"),
)
"""Precision of a matrix product -> pattern of its name; the first match counts."""


def category(name: str) -> str:
    """Return the category of a kernel.

    >>> category("Cijk_Ailk_Bljk_SB_MT64x64"), category("ncclDevKernel_AllReduce")
    ('matrix product', 'communication')
    """
    lower = name.lower()
    return next((label for label, pattern in CATEGORIES if re.search(pattern, lower)), OTHER)


def precision(name: str) -> str:
    """Return the precision in the name of a matrix product, "unknown" where it has none.

    >>> precision("ampere_sgemm_128x64_nn"), precision("cutlass_80_tensorop_bf16_s16816gemm")
    ('fp32', 'bf16')
    """
    return next((label for label, pattern in PRECISIONS if re.search(pattern, name)), "unknown")


Interval = tuple[str, float, float]
"""Name, start and end in nanoseconds."""


def profile_of_calls(source: str, calls: Iterable[Interval]) -> KernelProfile:
    """Build a profile of single calls.

    Args:
        source: name of the profiler and its file format.
        calls: name, start and end of each call in nanoseconds, in any order.

    >>> profile = profile_of_calls("trace", [("gemm", 0, 4), ("relu", 2, 5), ("gemm", 9, 10)])
    >>> profile.span_ns, profile.busy_ns, profile.idle
    (10, 6.0, 0.4)
    """
    listed = sorted(calls, key=lambda call: call[1])
    busy = 0.0
    reached = listed[0][1] if listed else 0.0
    for _, start, end in listed:
        # The union of the intervals: kernels of several streams overlap, and count once.
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    kernels = _kernels([(name, end - start) for name, start, end in listed])
    span = reached - listed[0][1] if listed else None
    return KernelProfile(source, kernels, span, busy if listed else None)


def profile_of_operations(source: str, threads: Iterable[Sequence[Interval]]) -> KernelProfile:
    """Build a profile of nested operations of a CPU (name, start, end in nanoseconds).

    The time of an operation is without those that it calls.

    Args:
        source: name of the profiler and its file format.
        threads: the operations of each thread.
    """
    outermost: list[Interval] = []
    times: list[tuple[str, float]] = []
    for operations in threads:
        nested: list[list[Any]] = []  # name, end, time without callees
        ended: list[list[Any]] = []
        # The longer one first where two start together: it is the caller.
        for name, start, end in sorted(operations, key=lambda one: (one[1], -one[2])):
            while nested and nested[-1][1] <= start:
                ended.append(nested.pop())
            if nested:
                nested[-1][2] -= end - start
            else:
                outermost.append((name, start, end))
            nested.append([name, end, end - start])
        times += [(name, max(0.0, time)) for name, _, time in ended + nested]
    outer = profile_of_calls(source, outermost)
    return KernelProfile(source, _kernels(times), outer.span_ns, outer.busy_ns, "CPU")


def _kernels(times: Sequence[tuple[str, float]]) -> tuple[KernelTime, ...]:
    """Return calls and total time of each kernel from the time of each call."""
    calls = Counter(name for name, _ in times)
    return tuple(KernelTime(name, calls[name], total) for name, total in _sums(times).items())


def _sums(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Add up values by label, largest sum first."""
    sums: dict[str, float] = defaultdict(float)
    for label, value in values:
        sums[label] += value
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def longest_first(kernels: Iterable[KernelTime]) -> tuple[KernelTime, ...]:
    """Sort kernels by total time, longest first."""
    return tuple(sorted(kernels, key=lambda kernel: -kernel.total_ns))


def shares(profile: KernelProfile) -> dict[str, float]:
    """Return the fraction of the kernel time that each category takes, largest first."""
    total_ns = profile.total_ns or 1.0
    sums = _sums((category(kernel.name), kernel.total_ns) for kernel in profile.kernels)
    return {label: total / total_ns for label, total in sums.items()}


def precisions(profile: KernelProfile) -> dict[str, float]:
    """Return the fraction of the time of matrix products in each precision, largest first."""
    products = [k for k in profile.kernels if category(k.name) == "matrix product"]
    total_ns = sum(kernel.total_ns for kernel in products) or 1.0
    return _sums((precision(kernel.name), kernel.total_ns / total_ns) for kernel in products)


MANY_IDLE = 0.3
"""Fraction of idle time from which the GPU waits for the host: a convention of this project."""
SHORT_NS = 10_000
"""Mean duration of a kernel below which launching it takes as long as running it."""
LARGE = 0.3
"""Fraction of the kernel time from which a category is named as the limit."""


@dataclass(frozen=True)
class Verdict:
    """Limit of a run, with advice on how to raise it."""

    limit: str
    advice: str


def verdict(profile: KernelProfile, wait: float = 0.0) -> Verdict:
    """Name what limits a run: the host first, then the category that takes most time.

    Args:
        profile: kernels of the run.
        wait: fraction of the time in which the network waits for a batch, where it is measured.

    >>> calls = [("Cijk_Ailk_Bljk_SB_MT64x64", 0.0, 9e6), ("Memcpy DtoH", 9e6, 1e7)]
    >>> verdict(profile_of_calls("trace", calls)).limit
    'compute-bound'
    """
    share = shares(profile)
    if wait >= MANY_IDLE:
        return Verdict(
            "data-bound",
            f"the network waits for batches {wait:.0%} of the time: more --num-workers, or a study "
            "of `aam prepare`",
        )
    calls = sum(kernel.calls for kernel in profile.kernels)
    mean_ns = profile.total_ns / max(calls, 1)
    if profile.idle is not None and profile.idle >= MANY_IDLE and profile.device == "CPU":
        return Verdict(
            "launch-bound",
            "Python between the operations takes most time: a larger --batch-size",
        )
    if profile.idle is not None and profile.idle >= MANY_IDLE:
        if mean_ns < SHORT_NS:
            return Verdict(
                "launch-bound",
                "the kernels are short and the GPU waits for launches: a larger --batch-size, "
                "--compile-model, or fewer and larger matrix products",
            )
        return Verdict(
            "data-bound",
            "the GPU waits between long kernels: more --num-workers, or a study of `aam prepare`",
        )
    if share.get("communication", 0) >= LARGE:
        return Verdict(
            "communication",
            "ranks wait for each other: --even-batches, a larger --batch-size, or fewer GPUs",
        )
    if share.get("attention", 0) >= LARGE:
        return Verdict(
            "attention-bound",
            "compare backends with `aam check`; a smaller --token-limit shortens the sets",
        )
    moved = ("elementwise", "normalization", "memory copy", "reduction", "indexing", "optimizer")
    if sum(share.get(label, 0) for label in moved) >= 0.5:
        return Verdict(
            "memory-bound",
            "kernels that move data take most time: --compile-model fuses them, and "
            "--mixed-precision halves their bytes",
        )
    if share.get("matrix product", 0) >= LARGE:
        slow = precisions(profile).get("fp32", 0) >= 0.5
        return Verdict(
            "compute-bound",
            "matrix products take most time: "
            + ("--mixed-precision auto" if slow else f"the {profile.device} is used well"),
        )
    return Verdict("mixed", "no category takes most of the time")


def differences(first: KernelProfile, second: KernelProfile) -> list[tuple[str, float, float]]:
    """Compare two profiles by category of kernels.

    Args:
        first: profile to compare with.
        second: other profile.

    Returns:
        Category, milliseconds in `first` and milliseconds in `second`, the largest difference
        first.
    """

    def milliseconds(profile: KernelProfile) -> dict[str, float]:
        return {k: v * profile.total_ns / 1e6 for k, v in shares(profile).items()}

    one, two = milliseconds(first), milliseconds(second)
    rows = [(label, one.get(label, 0.0), two.get(label, 0.0)) for label in {**one, **two}]
    return sorted(rows, key=lambda row: -abs(row[2] - row[1]))
