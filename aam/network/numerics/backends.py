"""Attention backends: selection before a run, and the command `aam check` that measures them.

A backend with wrong results is replaced by a correct one. On a GPU the quick check runs, unless a
report of this stack is stored (`network.numerics.report`). On a CPU nothing is measured: no fault
is known there, and the check would cost a second in each run. The candidate backends and the types
of devices to measure are arguments, so that a test can pass faulty backends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pickle
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from multiprocessing.connection import Connection
from typing import Any, get_args

import torch
from rich.console import Console

from aam.console import info, warn
from aam.contract.errors import Unavailable
from aam.contract.gpus import GPU
from aam.contract.options.commands.measure import Check
from aam.contract.options.groups import AttnImplementation, DeviceOptions, ModelOptions
from aam.network.model.attention import TORCH, Backend, Backends, backend_name
from aam.network.model.shape import NetworkShape
from aam.network.numerics.device import CPU, Identity, Precision, choose_device, identify, is_gpu
from aam.network.numerics.probes import (
    DTYPES,
    HALF,
    RECOMPUTED,
    MaskKind,
    Probe,
    Shape,
    identify_fault,
)
from aam.network.numerics.report import (
    Case,
    CheckReport,
    Cost,
    Outcome,
    StackKey,
    Status,
    StatusOf,
    Use,
    reports_folder,
)

REPETITIONS = 3
COST_SHAPES = {
    GPU: (Shape("nucleotide encoder", 512, 4, 30, 32), Shape("sample encoder", 16, 4, 1024, 32)),
    CPU: (Shape("nucleotide encoder", 128, 4, 30, 32), Shape("sample encoder", 2, 4, 512, 32)),
}
"""Sizes of a batch; smaller on a CPU, where only the ratios matter."""

TIMED_MASKS: tuple[MaskKind, ...] = ("none", "each")

LONG = 1000
"""Sets of at least this size are probed with two masks only: their expected result takes long."""

_ABSENT = ("no available kernel", "no viable backend", "not compiled", "not supported")
"""Errors of PyTorch for a kernel that does not exist for a device, dtype or mask."""
_DRIVER = ("cuda error", "hip error", "cublas", "hipblas", "miopen", "cudnn error")
"""Errors of driver and libraries: a failing device also gives "operation not supported"."""


@dataclass(frozen=True)
class CheckPlan:
    """The probes of a check; a quick check has small probes and measures no times."""

    quick: bool
    dtypes: tuple[str, ...] = tuple(DTYPES)
    recomputed: bool = False  # whether to probe recomputation, which imports PyTorch's compiler
    heads: int = 0  # attention heads of the network, and width of each; 0 for the default
    width: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of heads and the width of each that are probed."""
        first = Shape.probed(self.quick, self.heads, self.width)[0]
        return first.heads, first.width


@dataclass(frozen=True)
class Begin:
    """The start of a probe of a backend; both are empty while the device starts."""

    backend: str = ""
    probe: Probe | None = None
    timing: bool = False  # times are measured after all results

    def __str__(self) -> str:
        if self.probe is None:
            return "it was started"
        return f"{'timing ' if self.timing else ''}{self.backend}, {self.probe}"


@dataclass(frozen=True)
class Overhead:
    """Bytes of GPU memory besides tensors: driver, kernels, BLAS workspace, other processes."""

    size: int


Event = Begin | Identity | Case | Cost | Overhead


def measure(
    backends: tuple[Backend, ...], plan: CheckPlan, device: torch.device
) -> Iterator[Event]:
    """Run all probes in this process; yield an event before each, and its result after it."""
    yield Begin()
    yield identify(device)
    probes = [
        Probe(shape, dtype, mask)
        for dtype in plan.dtypes
        for shape in Shape.probed(plan.quick, plan.heads, plan.width)
        for mask in (get_args(MaskKind) if shape.members < LONG else TIMED_MASKS)
        if mask != "recomputed" or plan.recomputed
    ]
    for backend in backends:
        for probe in probes:
            yield Begin(backend.name, probe)
            yield case_of(backend, probe, device)
    if is_gpu(device):
        # The memory that a process needs besides its tensors. It is measured after the probes,
        # because the first call of a kernel loads it into the memory of the GPU.
        square = torch.ones(256, 256, device=device)
        square = square @ square
        torch.cuda.synchronize(device)
        del square
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        # PyTorch allocates the BLAS workspace with the first product. It counts as overhead because
        # the predicted peak of a step does not include it.
        workspace = torch.cuda.memory_allocated(device)
        yield Overhead(total - free - torch.cuda.memory_reserved(device) + workspace)
    if plan.quick:
        return
    for backend in backends:
        for dtype in plan.dtypes:
            for shape in COST_SHAPES[device.type]:
                for mask in TIMED_MASKS:
                    probe = Probe(shape, dtype, mask)
                    yield Begin(backend.name, probe, timing=True)
                    cost = cost_of(backend, probe, device)
                    if cost is not None:
                        yield cost


def case_of(backend: Backend, probe: Probe, device: torch.device) -> Case:
    """Run one probe on a backend and compare the result with the expected one."""
    inputs, expected = probe.input_and_expected
    case = case_for(backend.name, probe, "right")
    try:
        result = inputs.run(backend, device)
        fault = identify_fault(probe, result, lambda: inputs.run(backend, device, packed=False))
    except RuntimeError as error:
        if type(error).__name__ == "CheckpointError":  # its module imports PyTorch's compiler
            return dataclasses.replace(
                case, outcome="wrong", fault=RECOMPUTED.name, note=_first_line(error)
            )
        return dataclasses.replace(case, outcome=_refusal(error), note=_first_line(error))
    errors = result.differences(expected)
    return dataclasses.replace(
        case,
        outcome="right" if fault is None else "harmless" if fault.harmless else "wrong",
        forward=_figure(errors[0].largest),
        backward=_figure(max(error.largest for error in errors[1:])),
        fault=fault.name if fault else "",
    )


def case_for(backend: str, probe: Probe, outcome: Outcome, note: str = "") -> Case:
    """Return the case of a probe without figures."""
    return Case(
        backend,
        probe.dtype,
        probe.mask,
        outcome,
        probe.shape.name,
        probe.shape.members,
        allowed=_figure(probe.tolerance) or 0.0,
        note=note,
    )


def _refusal(error: RuntimeError) -> Outcome:
    """Return the outcome of an error: the kernel does not exist, is out of memory, or fails."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        # The allocator keeps the blocks of the failed probe, but the next probe may need them.
        torch.cuda.empty_cache()
        return "memory"
    # PyTorch has no error class for a kernel that does not exist, so the text decides.
    message = str(error).lower()
    absent = any(phrase in message for phrase in _ABSENT)
    return "absent" if absent and not any(name in message for name in _DRIVER) else "failed"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _figure(number: float) -> float | None:
    """Round a number to 3 digits for the JSON; None for NaN and infinity."""
    return float(f"{number:.3g}") if number == number and number != float("inf") else None


def cost_of(backend: Backend, probe: Probe, device: torch.device) -> Cost | None:
    """Measure time and peak memory of a backend; None if it cannot run."""
    inputs = probe.make_input()  # not cached: they are large and used once
    qkv = inputs.qkv_NK3HE.to(device).permute(2, 0, 3, 1, 4).detach().requires_grad_()
    mask = None if inputs.mask_N11K is None else inputs.mask_N11K.to(device)
    upstream = inputs.upstream_NHKE.to(device)
    gpu, times, peak = is_gpu(device), [], None

    def once() -> None:
        qkv.grad = None
        q, k, v = qkv.unbind(0)
        torch.autograd.backward(backend.function(q, k, v, mask), upstream)
        if gpu:
            # Kernels run asynchronously: without this the clock would measure their launch.
            torch.cuda.synchronize(device)

    try:
        # A first run that is not timed, because it compiles or loads the kernel.
        once()
        if gpu:
            torch.cuda.reset_peak_memory_stats(device)
            allocated = torch.cuda.memory_allocated(device)
        for _ in range(REPETITIONS):
            began = time.perf_counter()
            once()
            times.append(time.perf_counter() - began)
        if gpu:
            peak = torch.cuda.max_memory_allocated(device) - allocated
    except RuntimeError as error:
        _refusal(error)
        return None
    milliseconds = _figure(1000 * statistics.median(times)) or 0.0
    return Cost(backend.name, probe.dtype, probe.mask, probe.shape.name, milliseconds, peak)


def check_attention(
    backends: tuple[Backend, ...], plan: CheckPlan, device: torch.device, patience: float = 120.0
) -> CheckReport:
    """Run the attention check of a device and return its report.

    On a GPU the probes run in a child process, because a faulty kernel may hang or end the process
    that runs it; the report then has the results of the other backends. After `patience` seconds
    without an event the GPU counts as hanging; its first kernel takes seconds.
    """
    if is_gpu(device):
        return conclude(measure_in_child(backends, plan, device, patience), plan.quick)
    return conclude(measure(backends, plan, device), plan.quick)


def conclude(events: Iterable[Event], quick: bool) -> CheckReport:
    """Collect the events of a check into a report."""
    began = time.monotonic()
    identity: Identity | None = None
    overhead: int | None = None
    cases, costs = [], []
    for event in events:
        if isinstance(event, Identity):
            identity = event
        elif isinstance(event, Case):
            cases.append(event)
        elif isinstance(event, Cost):
            costs.append(event)
        elif isinstance(event, Overhead):
            overhead = event.size
    assert identity is not None
    # A case that is right in fp32 but wrong in a half precision has a fault of that precision.
    right = {(c.backend, c.mask, c.shape, c.members) for c in cases
             if c.dtype == "fp32" and c.outcome == "right"}  # fmt: skip
    for number, case in enumerate(cases):
        key = (case.backend, case.mask, case.shape, case.members)
        if case.outcome == "wrong" and case.dtype != "fp32" and key in right:
            name = HALF.name if case.fault == "unknown fault" else f"{HALF.name}: {case.fault}"
            cases[number] = dataclasses.replace(case, fault=name)
    return CheckReport(
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        quick=quick,
        seconds=round(time.monotonic() - began, 1),
        identity=dataclasses.asdict(identity),
        cases=tuple(cases),
        costs=tuple(costs),
        overhead=overhead,
    )


_KILL_TIMEOUT = 5  # seconds to wait for a killed process


def measure_in_child(
    backends: tuple[Backend, ...], plan: CheckPlan, device: torch.device, patience: float
) -> Iterator[Event]:
    """Run all probes in a child process; after a crash another child continues."""
    pending = backends
    while pending:
        reading, writing = os.pipe()
        # The path is set first, so that no module of the current folder is imported.
        boot = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from aam.network.numerics.backends import work; work({writing})"
        )
        # Not `multiprocessing.Process`: spawning imports the main module again, so a script that
        # fits a model without `if __name__ == "__main__"` would start itself endlessly. Also,
        # Python waits for its children before it exits, even for a child that is stuck in the
        # driver.
        process = subprocess.Popen(
            [sys.executable, "-c", boot], stdin=subprocess.PIPE, pass_fds=(writing,)
        )
        # While the parent's copy is open, the end of the child is no end of file.
        os.close(writing)
        begun = Begin()
        with contextlib.closing(Connection(reading, writable=False)) as events:
            try:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                    pickle.dump((pending, plan, device), stream)
                while True:
                    if not events.poll(patience):
                        evidence = f"no result for {patience:g} s since {begun}"
                        cause = "The GPU responds but computes nothing"
                        raise Unavailable(cause, evidence, _REMEDY)
                    event = events.recv()
                    if event is None:  # the end
                        return
                    if isinstance(event, str):  # an error
                        raise Unavailable("The GPU cannot be used", event, _REMEDY)
                    if isinstance(event, Begin):
                        begun = event
                    yield event
            except EOFError:
                status = process.wait()
                cause = f"ended with status {status}"
                if status < 0:
                    cause = f"was killed by {signal.Signals(-status).name}"
                if begun.probe is None:
                    raise Unavailable(
                        "The GPU cannot be started", f"the process that tried {cause}", _REMEDY
                    ) from None
                yield case_for(begun.backend, begun.probe, "crashed", cause)
                if begun.timing:
                    return
                names = [backend.name for backend in pending]
                pending = pending[names.index(begun.backend) + 1 :]
            finally:
                process.kill()
                # SIGKILL does not end a process in an uninterruptible call of the driver.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_TIMEOUT)


_REMEDY = "look at the kernel log (`dmesg`), use another node, or --device cpu"


def work(writing: int) -> None:
    """Run the probes in the child: read them from standard input, send events to `writing`."""
    events = Connection(writing, readable=False)
    backends, plan, device = pickle.load(sys.stdin.buffer)
    try:
        if is_gpu(device):
            torch.cuda.set_device(device)
        for event in measure(backends, plan, device):
            events.send(event)
    except RuntimeError as error:
        events.send(_first_line(error))
    events.send(None)


REPLACEMENTS = ("flash", "mem_efficient", "math", "auto")
"""Substitutes for another backend. Fused kernels come first, and they are named, so that the run
record names the kernel that computed."""


def select_backends(
    requested: AttnImplementation, backends: Sequence[str], status_of: StatusOf, device: str
) -> tuple[str, str, str]:
    """Select the requested attention backend if it is correct, else the next correct one.

    Return the backend without a mask, the backend with masks, and why one of them is not the
    requested one ("" if both are).

    >>> status = {"flash": "wrong", "math": "right"}
    >>> select_backends("flash", list(status), lambda name, use: status[name], "cuda")
    ('math', 'math', '--attn-implementation flash computes wrong on cuda; math runs instead.')
    """
    preferred = backend_name(requested)
    candidates = [preferred, *(n for n in REPLACEMENTS if n in backends and n != preferred)]

    def first(use: Use) -> str:
        # The first correct backend ends the search, since a trial costs time on a GPU.
        for name in candidates:
            if status_of(name, use) == "right":
                return name
        raise Unavailable(
            "No attention backend computes correctly on this device",
            ", ".join(f"{name} {status_of(name, use)}" for name in candidates),
            "measure again (`aam check`), choose another image (`aam-launch images`), compute with "
            "--device cpu, or skip the check with --no-check",
        )

    plain, masked = first("plain"), first("masked")
    if preferred == plain == masked:
        return plain, masked, ""
    if preferred == plain:
        absent = status_of(preferred, "masked") == "absent"
        reason = f"{'supports no mask' if absent else 'computes wrong with masks'} on {device}"
        used = f"{masked} runs with masks"
    else:
        absent = status_of(preferred, "plain") == "absent"
        reason = f"{'cannot run' if absent else 'computes wrong'} on {device}"
        used = f"{plain} runs" if plain == masked else f"{plain}, and {masked} with masks, run"
        used += " instead"
    return plain, masked, f"--attn-implementation {preferred} {reason}; {used}."


@dataclass(frozen=True)
class BackendPolicy:
    """Candidate attention backends, and the types of devices on which they are measured."""

    backends: tuple[Backend, ...] = TORCH
    devices: tuple[str, ...] = (GPU,)

    def choose_attention(
        self,
        options: DeviceOptions,  # requested backend, and whether to measure
        device: torch.device,
        sizes: NetworkShape | ModelOptions,
        precision: Precision = "none",  # precision of training; inference uses fp32
        recomputed: bool = False,  # whether the run uses gradient checkpointing
    ) -> tuple[Backends, dict[str, Any]]:
        """Choose attention backends that compute correctly; return their run record entry too."""
        # Inference after the training uses fp32, so fp32 is always measured.
        dtypes = ("fp32",) if precision == "none" else ("fp32", precision)
        heads, width = sizes.attention_heads, sizes.embedding_dim // sizes.attention_heads
        plan = CheckPlan(True, dtypes, recomputed, heads, width)
        by_name = {backend.name: backend for backend in self.backends}
        report, evidence = _report(options, plan, device, self)

        def tried(name: str, use: Use) -> Status:
            masked = use == "masked"
            can_run = all(runs(by_name[name], device, masked, DTYPES[dtype]) for dtype in dtypes)
            return "right" if can_run else "absent"

        # Without a measurement a backend that runs counts as right.
        status_of = tried if report is None else report.status_of(dtypes, recomputed)
        requested = options.attn_implementation
        plain, masked, warning = select_backends(requested, list(by_name), status_of, device.type)
        record: dict[str, Any] = {
            "requested": requested,
            "without_mask": plain,
            "with_mask": masked,
            "evidence": evidence,
        }
        if warning:
            warn(warning)
        if report is not None:
            wrong = {name: report.faults(name, dtypes) for name in report.backends}
            record["faults"] = {name: list(faults) for name, faults in wrong.items() if faults}
            record["stack"] = report.identity
            if warning and (faults := wrong.get(backend_name(requested))):
                warn(f"attention backend {backend_name(requested)}: {', '.join(faults)}")
        return Backends(by_name[plain], by_name[masked]), record


def _report(
    options: DeviceOptions, plan: CheckPlan, device: torch.device, policy: BackendPolicy
) -> tuple[CheckReport | None, str]:
    """Return a valid check report or None, and its origin."""
    if device.type not in policy.devices:
        return None, f"not measured on a {device.type}"
    if not options.check:
        return None, "not measured: --no-check"
    stack, folder = identify(device), reports_folder(os.environ)
    key = StackKey.of(stack, *plan.sizes, os.environ) if folder else None
    if folder and key:
        report, problem = key.load(folder)
        if problem:
            warn(f"A check report is not used: {problem}.")
        elif report is not None and all(
            report.identity.get(name) == getattr(stack, name)
            for name in ("torch", "vendor", "aotriton")
        ):
            if set(plan.dtypes) <= set(report.dtypes) and report.recomputed >= plan.recomputed:
                return report, f"measured for this stack, {report.made}"
            # The new report replaces the stored one, so it measures again what that one has.
            # Otherwise runs of different precisions would replace each other's reports.
            dtypes = tuple(name for name in DTYPES if name in {*plan.dtypes, *report.dtypes})
            recomputed = plan.recomputed or report.recomputed
            plan = replace(plan, dtypes=dtypes, recomputed=recomputed)
    kind = "GPU" if is_gpu(device) else "CPU"
    info(f"Measuring whether this {kind} computes attention correctly.")
    report = replace(check_attention(policy.backends, plan, device), key=key)
    if folder and key and (problem := report.store(folder)):
        warn(f"The check report is not stored: {problem}.")
    return report, "measured before this run"


def run_check(options: Check, backends: tuple[Backend, ...] = TORCH) -> int:
    """Run `aam check`: measure the attention backends of a device and print the report."""
    device = choose_device(DeviceOptions(device=options.device))
    if not is_gpu(device) and options.device == "auto":
        info("No GPU was found; the CPU is measured.")
    plan = CheckPlan(options.quick, recomputed=not options.quick)
    report = check_attention(backends, plan, device, options.timeout)
    if all(case.unusable for case in report.cases):
        notes = {c.backend: c.note for c in report.cases if c.outcome in ("failed", "memory")}
        evidence = "; ".join(f"{name}: {note}" for name, note in notes.items()) or "none can run"
        cause = "No attention backend runs"
        remedy = "this PyTorch may not be compiled for this GPU; choose another image"
        if any(case.outcome == "memory" for case in report.cases):
            cause = "Out of memory during the check"
            remedy = "another program uses the memory of the GPU: end it, or use another GPU"
        raise Unavailable(cause, evidence, remedy)
    folder = reports_folder(os.environ)
    key = StackKey.of(Identity(**report.identity), *plan.sizes, os.environ)
    if folder is not None and key is not None:
        report = replace(report, key=key)
        # A folder that cannot be written must not hide the report.
        if problem := report.store(folder):
            warn(f"The check report is not stored: {problem}.")
    if options.json:
        print(report.to_json())
    else:
        console = Console(highlight=False, width=None if Console().is_terminal else 120)
        console.print(report.page(conclusion(report)))
    return 1 if report.wrong else 0


def conclusion(report: CheckReport) -> str:
    """Return whether the backends of a check report are right, and which of them `aam` uses."""
    try:
        status_of = report.status_of(report.dtypes)
        names = [backend.name for backend in TORCH]
        plain, masked, _ = select_backends("auto", names, status_of, "this device")
    except Unavailable as error:
        return str(error)
    wrong = list(dict.fromkeys(case.backend for case in report.cases if case.wrong))
    verdict = f"Wrong here: {', '.join(wrong)}" if wrong else "Right here"
    uses = plain if plain == masked else f"{plain}, and {masked} with masks"
    return f"{verdict}. aam uses {uses}. ({math.ceil(report.seconds)} s)"


def runs(
    backend: Backend, device: torch.device, masked: bool, dtype: torch.dtype = torch.float32
) -> bool:
    """Return whether a backend runs on a device, with or without a mask."""
    q_NHKE = torch.zeros(2, 1, 8, 16, device=device, dtype=dtype)
    mask_N11K = torch.ones(2, 1, 1, 8, dtype=torch.bool, device=device) if masked else None
    try:
        backend.function(q_NHKE, q_NHKE, q_NHKE, mask_N11K)
    except RuntimeError:
        return False
    return True
