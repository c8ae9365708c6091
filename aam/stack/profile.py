"""`aam profile`: readers of kernel profiles, time by category, idle time, verdict.

The readers accept kernel statistics and traces of rocprof, rocprofv3 and nsys (CSV), and Chrome
traces of torch.profiler; a format is recognized by its content. Categories and precision follow
from kernel names. CUDA and ROCm have different names, so their profiles are compared by category.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from aam.console import info
from aam.contract.errors import DataError, UsageError
from aam.contract.files import atomic_write, refuse_existing, require
from aam.contract.options.commands.measure import Profile
from aam.contract.options.commands.train import Pretrain, Train
from aam.stack.workload import aam_workload, run_workload

MAX_BYTES = 2 << 30
"""Largest unpacked size of a file; traces of a complete training are larger."""
_MAX_NS = 1e9 * 3600 * 24 * 10_000  # ten thousand days; a longer time means damage
Interval = tuple[str, float, float]  # name, start and end in nanoseconds


@dataclass(frozen=True)
class KernelTime:
    """Total time of a kernel, or of memory copies in one direction."""

    name: str  # without the suffix `.kd` of a kernel descriptor
    calls: int
    total_ns: float


@dataclass(frozen=True)
class KernelProfile:
    """Kernel profile of one run; a file of totals has no start times."""

    source: str  # name of the profiler and its file format
    kernels: tuple[KernelTime, ...]  # and memory copies, longest total first
    span_ns: float | None = None  # from the start of the first kernel to the end of the last
    busy_ns: float | None = None  # length of the union of the kernels' intervals
    device: str = "GPU"  # "CPU" for operations of PyTorch, without nested operations

    @property
    def calls(self) -> int:
        """Number of calls of all kernels."""
        return sum(kernel.calls for kernel in self.kernels)

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


CSV_FORMATS: tuple[tuple[str, str, str, str], ...] = (
    # Files of single calls: columns of name, start and end in nanoseconds.
    ("rocprof", "KernelName", "BeginNs", "EndNs"),
    ("rocprofv3 kernel trace", "Kernel_Name", "Start_Timestamp", "End_Timestamp"),
    ("rocprofv3 copy trace", "Direction", "Start_Timestamp", "End_Timestamp"),
    # Files of totals: columns of name, calls and total time. rocprofv3 has one column more than
    # rocprof; the same columns are read.
    ("rocprof statistics", "Name", "Calls", "TotalDurationNs"),
    ("nsys statistics", "Name", "Instances", "Total Time (ns)"),
)
"""Format -> names of its columns (their order differs between versions)."""


def read_profile(path: Path) -> KernelProfile:
    """Read a kernel profile, gzipped or not."""
    with require(path, "profile").open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            # Bounded while unpacking: a small gzip file may hold any number of bytes.
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES >> 30} GiB; profile fewer steps")
        if content.startswith(b"SQLite format 3"):
            remedy = "run rocprofv3 with --output-format csv, and give its kernel trace"
            raise DataError("A rocpd database is not read", f"'{path}'", remedy)
        text = content.decode()
        profile = _chrome_trace(text) if text.lstrip()[:1] in ("{", "[") else _csv_file(text)
        for kernel in profile.kernels if profile else ():
            if not 0 <= kernel.total_ns <= _MAX_NS or not 0 < kernel.calls < 1 << 63:
                raise ValueError(
                    f"{kernel.calls:.3g} calls of {kernel.name[:40]} in {kernel.total_ns:.3g} ns"
                )
        if profile and profile.kernels and not profile.total_ns:
            raise ValueError("all its times are 0")
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, ArithmeticError,
            RecursionError, csv.Error, zlib.error) as error:  # fmt: skip
        cause = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            "The profile is damaged or incomplete",
            f"'{path}': {' '.join(cause.split())[:200]}",
            "a profiler writes its file when the program ends normally: run it again",
        ) from None
    if profile is None:
        raise DataError(
            "Not the output of a known profiler",
            f"'{path}'",
            "give kernel statistics or traces of rocprof, rocprofv3 or nsys (CSV), or of "
            "torch.profiler (Chrome trace)",
        )
    if not profile.kernels:
        raise DataError(
            "The profile has no kernels",
            f"'{path}' ({profile.source})",
            "profile the kernels too (rocprofv3 --kernel-trace, torch.profiler with CUDA activity)",
        )
    return profile


def _csv_file(text: str) -> KernelProfile | None:
    """Read a table of calls or totals; None for unknown columns."""

    def plain(name: str) -> str:
        return name.removesuffix(" [clone .kd]").removesuffix(".kd")

    lines = text.splitlines()
    # nsys prints other lines above the header.
    for first, line in enumerate(lines[:50]):
        columns = {name.strip() for name in next(csv.reader([line]), ())}
        source, *read = next((form for form in CSV_FORMATS if columns.issuperset(form[1:])), ("",))
        if not read:
            continue
        table = csv.DictReader(lines[first:], strict=True)
        table.fieldnames = [name.strip() for name in table.fieldnames or ()]
        rows = [[row[name] for name in read] for row in table]
        if read[1] not in ("Calls", "Instances"):
            calls = ((plain(name), int(start), int(end)) for name, start, end in rows)
            return profile_of_calls(source, calls)
        names = [name for name, *_ in rows]
        if names and all(name.lstrip("_").startswith(("hip", "hsa", "cuda")) for name in names):
            raise DataError(
                "Calls of the host's API instead of kernels",
                f"{names[0]} and others",
                "give the file of kernel statistics (*kernel_stats.csv)",
            )
        source = f"rocprofv3{source[7:]}" if "MinNs" in columns else source
        # The text form of nsys has thousands separators.
        kernels = [
            KernelTime(
                plain(name), int(float(number.replace(",", ""))), float(total.replace(",", ""))
            )
            for name, number, total in rows
        ]
        return KernelProfile(source, tuple(sorted(kernels, key=lambda kernel: -kernel.total_ns)))
    return None


def _chrome_trace(text: str) -> KernelProfile | None:
    """Read the kernels of a Chrome trace (in microseconds); without kernels, CPU operations."""
    content = json.loads(text)
    if isinstance(content, dict) and "traceEvents" not in content:
        return None
    kernels: list[Interval] = []
    threads: dict[Any, list[Interval]] = defaultdict(list)
    # A Chrome trace may also be the list of its events.
    for event in content if isinstance(content, list) else content["traceEvents"]:
        kind = event.get("cat")
        if event.get("ph") == "X" and kind in ("kernel", "gpu_memcpy", "gpu_memset", "cpu_op"):
            start = float(event["ts"])
            call = (str(event["name"]), 1e3 * start, 1e3 * (start + float(event["dur"])))
            (threads[event.get("tid")] if kind == "cpu_op" else kernels).append(call)
    source = "torch.profiler trace"
    if kernels:
        return profile_of_calls(source, kernels)
    outermost: list[Interval] = []
    times: list[tuple[str, float]] = []
    for operations in threads.values():
        running: list[list[Any]] = []  # name, end, time without nested operations
        ended: list[list[Any]] = []
        # If two operations start together, the longer one is the caller.
        for name, start, end in sorted(operations, key=lambda call: (call[1], -call[2])):
            while running and running[-1][1] <= start:
                ended.append(running.pop())
            if running:
                running[-1][2] -= end - start
            else:
                outermost.append((name, start, end))
            running.append([name, end, end - start])
        times += [(name, max(0.0, time)) for name, _, time in ended + running]
    outer = profile_of_calls(source, outermost)
    return KernelProfile(
        f"{source} of a CPU", _kernels(times), outer.span_ns, outer.busy_ns, device="CPU"
    )


def profile_of_calls(source: str, calls: Iterable[Interval]) -> KernelProfile:
    """Build a kernel profile from single calls (name, start, end in nanoseconds) in any order.

    >>> profile = profile_of_calls("trace", [("gemm", 0, 4), ("relu", 2, 5), ("gemm", 9, 10)])
    >>> profile.span_ns, profile.busy_ns, profile.idle
    (10, 6.0, 0.4)
    """
    ordered = sorted(calls, key=lambda call: call[1])
    busy = 0.0
    reached = ordered[0][1] if ordered else 0.0
    for _, start, end in ordered:
        # The union of the intervals: overlapping kernels of several streams count once.
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    kernels = _kernels([(name, end - start) for name, start, end in ordered])
    span = reached - ordered[0][1] if ordered else None
    return KernelProfile(source, kernels, span, busy if ordered else None)


def _kernels(times: list[tuple[str, float]]) -> tuple[KernelTime, ...]:
    calls = Counter(name for name, _ in times)
    return tuple(KernelTime(name, calls[name], total) for name, total in _sums(times).items())


def _sums(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum values by label, largest sum first."""
    sums: dict[str, float] = defaultdict(float)
    for label, value in values:
        sums[label] += value
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


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

Kernel names of PyTorch, rocBLAS (Tensile: `Cijk_`), cuBLAS, aotriton and FlashAttention.
"""

_TENSILE = r"Cijk_[A-Z]\w{3}_[A-Z]\w{3}_"
PRECISIONS: tuple[tuple[str, str], ...] = (
    ("bf16", rf"{_TENSILE}B_?[BS]S_|bf16|bfloat16"),
    ("fp16", rf"{_TENSILE}H_?[HS]S_|fp16|f16f16|hgemm|h16816|h1688|_h884"),
    ("fp64", rf"{_TENSILE}D_?B_|dgemm|f64f64"),
    ("fp32", rf"{_TENSILE}S_?B_|sgemm|f32f32|s1688|tf32|fp32"),
)
"""Precision of a matrix product -> pattern of its name; the first match counts."""


def category(name: str) -> str:
    """Return the category of a kernel."""
    return _first_match(CATEGORIES, name.lower()) or "other"


def _first_match(patterns: tuple[tuple[str, str], ...], name: str) -> str:
    return next((label for label, pattern in patterns if re.search(pattern, name)), "")


def shares(profile: KernelProfile) -> dict[str, float]:
    """Return the fraction of the kernel time that each category takes, largest first."""
    total_ns = profile.total_ns or 1.0
    sums = _sums((category(kernel.name), kernel.total_ns) for kernel in profile.kernels)
    return {label: total / total_ns for label, total in sums.items()}


def precisions(profile: KernelProfile) -> dict[str, float]:
    """Return the fraction of the time of matrix products in each precision, by kernel names."""
    products = [k for k in profile.kernels if category(k.name) == "matrix product"]
    total_ns = sum(kernel.total_ns for kernel in products) or 1.0
    return _sums(
        (_first_match(PRECISIONS, kernel.name) or "unknown", kernel.total_ns / total_ns)
        for kernel in products
    )


MIN_IDLE = 0.3
"""Fraction of idle time from which the GPU waits for the host: a convention of this project."""
SHORT_NS = 10_000  # mean duration of a kernel below which launching takes as long as running
MIN_SHARE = 0.3  # fraction of the kernel time from which a category is the limit


def verdict(profile: KernelProfile, wait: float = 0.0) -> tuple[str, str]:
    """Return the limit of a run and a remedy: the host first, then the largest category.

    `wait`: fraction of the time in which the network waits for a batch, if measured.

    >>> calls = [("Cijk_Ailk_Bljk_SB_MT64x64", 0.0, 9e6), ("Memcpy DtoH", 9e6, 1e7)]
    >>> verdict(profile_of_calls("trace", calls))[0]
    'compute-bound'
    """
    share: dict[str, float] = defaultdict(float, shares(profile))
    workers = "more --num-workers, or a study of `aam prepare`"
    waits = (profile.idle or 0.0) >= MIN_IDLE
    short = profile.total_ns / max(profile.calls, 1) < SHORT_NS
    moved = ("elementwise", "normalization", "memory copy", "reduction", "indexing", "optimizer")
    slow = precisions(profile).get("fp32", 0) >= 0.5
    precision = "--mixed-precision auto" if slow else f"the {profile.device} is used well"
    rules = (
        (wait >= MIN_IDLE, "data-bound",
         f"the network waits for batches {wait:.0%} of the time: {workers}"),
        (waits and profile.device == "CPU", "launch-bound",
         "Python between the operations takes most time: a larger --batch-size"),
        (waits and short, "launch-bound",
         "the kernels are short and the GPU waits for launches: a larger --batch-size, "
         "--compile-model, or fewer and larger matrix products"),
        (waits, "data-bound", f"the GPU waits between long kernels: {workers}"),
        (share["communication"] >= MIN_SHARE, "communication",
         "ranks wait for each other: --even-batches, a larger --batch-size, or fewer GPUs"),
        (share["attention"] >= MIN_SHARE, "attention-bound",
         "compare backends with `aam check`; a smaller --token-limit shortens the sets"),
        (sum(share[label] for label in moved) >= 0.5, "memory-bound",
         "kernels that move data take most time: --compile-model fuses them, and "
         "--mixed-precision halves their bytes"),
        (share["matrix product"] >= MIN_SHARE, "compute-bound",
         f"matrix products take most time: {precision}"),
        (True, "mixed", "no category takes most of the time"),
    )  # fmt: skip
    return next((limit, advice) for holds, limit, advice in rules if holds)


def as_plain(profile: KernelProfile, number: int, wait: float = 0.0) -> dict[str, Any]:
    """Convert a profile to JSON values, with its `number` longest kernels."""
    limit, advice = verdict(profile, wait)
    return {
        "source": profile.source,
        "device": profile.device,
        "calls": profile.calls,
        "milliseconds": profile.total_ns / 1e6,
        "idle": profile.idle,
        "limit": limit,
        "advice": advice,
        "shares": shares(profile),
        "precisions": precisions(profile),
        "kernels": [
            {
                "name": kernel.name,
                "category": category(kernel.name),
                "calls": kernel.calls,
                "milliseconds": kernel.total_ns / 1e6,
            }
            for kernel in profile.kernels[:number]
        ],
    }


TIMEOUT = 600.0  # seconds without a step after which the command counts as hanging


def run_profile(options: Profile, measured: Pretrain | Train | tuple[str, ...]) -> None:
    """Run `aam profile`: print limit, categories and longest kernels, or compare two profiles."""
    if not isinstance(measured, tuple):
        _record(options, measured)
        return
    if options.profile is None:
        remedy = "give the output of a profiler, or pretrain or train with its options"
        raise UsageError("`profile` lacks what it reads", "no file was given", remedy)
    profiles = [read_profile(path) for path in (options.profile, options.compare) if path]
    if options.json:
        summaries = [as_plain(profile, options.kernels) for profile in profiles]
        print(json.dumps(summaries if len(summaries) > 1 else summaries[0], indent=2))
        return
    console = Console(highlight=False)
    for number, profile in enumerate(profiles):
        if number:
            console.print()
        _show(console, profile, options.kernels)
    if len(profiles) > 1:
        first, second = (
            {label: share * profile.total_ns / 1e6 for label, share in shares(profile).items()}
            for profile in profiles
        )
        heads = ("first, ms", "second, ms", "ratio")
        table = Table("category", *map(_right, heads), box=None, pad_edge=False)
        rows = [(label, first.get(label, 0.0), second.get(label, 0.0)) for label in first | second]
        for label, ms, other_ms in sorted(rows, key=lambda row: -abs(row[2] - row[1])):
            ratio = f"{other_ms / ms:.2f}" if ms else ""
            table.add_row(label, f"{ms:.3f}", f"{other_ms:.3f}", ratio)
        console.print()
        console.print(table)


def _record(options: Profile, measured: Pretrain | Train) -> None:
    """Record some steps of a command, and print their profile."""
    folder = options.output_dir
    if folder is None:
        form = "`aam profile --output-dir FOLDER pretrain ...`"
        raise UsageError("`profile` lacks a folder for the trace", "--output-dir", f"give {form}")
    trace = folder / "trace.json.gz"
    refuse_existing(trace, options.overwrite)
    steps = options.warmup_steps + options.profile_steps
    with (
        atomic_write(trace) as temporary,
        tempfile.TemporaryDirectory(prefix="running-", dir=folder) as name,
    ):
        running = Path(name)
        argv = aam_workload(measured, "profile")({}, running)
        variables = {"AAM_TRACE": str(temporary), "AAM_TRACE_FROM": str(options.warmup_steps)}
        logged = run_workload(argv, steps, running, TIMEOUT, variables=variables)
        if logged.failure:
            raise DataError("The command fails", logged.failure, "run it by itself")
    # The first steps allocate memory and choose kernels.
    recorded = logged.steps[options.warmup_steps :]
    wait = sum(step.wait for step in recorded) / sum(step.seconds for step in recorded)
    profile = read_profile(trace)
    if options.json:
        print(json.dumps({**as_plain(profile, options.kernels, wait), "wait": wait}, indent=2))
    else:
        _show(Console(highlight=False), profile, options.kernels, wait)
    info(f"Trace: {trace}")


def _show(console: Console, profile: KernelProfile, number: int, wait: float | None = None) -> None:
    """Print the limit of a profile, its categories and its `number` longest kernels."""
    items = "kernels" if profile.device == "GPU" else "operations"
    console.print(
        f"{profile.source}: {profile.calls} calls of {len(profile.kernels)} {items}, "
        f"{profile.total_ns / 1e6:.3f} ms."
    )
    unknown = "not known (totals without start times)"
    idle = unknown if profile.idle is None else f"{profile.idle:.0%}"
    if profile.device == "GPU":
        console.print(f"GPU idle between the first and the last kernel: {idle}.")
    else:
        console.print(f"Outside operations of PyTorch: {idle}.")
    if wait is not None:
        console.print(f"The network waits for a batch: {wait:.0%} of the time.")
    console.print(f"Limit: {': '.join(verdict(profile, wait or 0.0))}.")
    if profile.device == "GPU" and (products := precisions(profile)):
        listing = ", ".join(f"{name} {share:.0%}" for name, share in products.items())
        console.print(f"Precision of the matrix products, by their names: {listing}.")
    categories = Table("category", _right("share"), box=None, pad_edge=False)
    for name, share in shares(profile).items():
        categories.add_row(name, f"{share:.1%}")
    heads = [*map(_right, ("ms", "share", "calls")), Column("category")]
    kernels = Table(*heads, box=None, pad_edge=False, expand=True)
    # The only flexible column: names are truncated, numbers never.
    kernels.add_column("kernel", no_wrap=True, overflow="ellipsis", ratio=1)
    for kernel in profile.kernels[:number]:
        kernels.add_row(
            f"{kernel.total_ns / 1e6:.3f}",
            f"{kernel.total_ns / profile.total_ns:.1%}",
            str(kernel.calls),
            category(kernel.name),
            # rich reads square brackets, as in C++ names, as markup.
            escape(re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", kernel.name)),
        )
    for table in (categories, kernels):
        console.print()
        console.print(table)


def _right(header: str) -> Column:
    return Column(header, justify="right")
