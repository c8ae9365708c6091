"""Attention check: run every probe on every backend, as a stream of events, and report.

The events show which probe was running when a child process stops. A GPU that hangs or crashes its
process ends a child alone: a hanging call cannot be interrupted from within (it may hold the
interpreter lock), so the parent has a timeout, and a child that crashes is followed by another
without the backend that crashed it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from multiprocessing.connection import Connection

import torch

from aam.contract.errors import Unavailable
from aam.contract.gpus import GPU
from aam.network.model.attention import Backend
from aam.network.numerics.device import CPU, Identity, identify, is_gpu
from aam.network.numerics.faults import HALF, RECOMPUTED, identify_fault
from aam.network.numerics.probes import (
    DTYPES,
    MASKS,
    MaskKind,
    Probe,
    Shape,
    differences,
    expected_result,
    probe_input,
    run_probe,
    shapes,
    tolerance,
)
from aam.network.numerics.report import Case, CheckReport, Cost, Outcome

REPETITIONS = 3
COST_SHAPES = {
    GPU: (Shape("nucleotide encoder", 512, 4, 30, 32), Shape("sample encoder", 16, 4, 1024, 32)),
    CPU: (Shape("nucleotide encoder", 128, 4, 30, 32), Shape("sample encoder", 2, 4, 512, 32)),
}
"""Sizes of a batch; smaller on a CPU, where only the ratios matter."""

TIMED_MASKS: tuple[MaskKind, ...] = ("none", "each")

LONG = 1000
"""Set size from which on only two masks are probed, since the expected result takes long."""

_ABSENT = ("no available kernel", "no viable backend", "not compiled", "not supported")
"""Errors of torch for a kernel that does not exist for a device, dtype or mask."""
_DRIVER = ("cuda error", "hip error", "cublas", "hipblas", "miopen", "cudnn error")
"""Errors of driver and libraries, which say "operation not supported" of a device that fails."""


@dataclass(frozen=True)
class CheckPlan:
    """The probes of a check: small ones alone and no times if it is quick."""

    quick: bool
    dtypes: tuple[str, ...] = tuple(DTYPES)
    recomputed: bool = False  # for this torch imports its compiler
    heads: int = 0  # of the network, and width of each; 0 for the default
    width: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of heads and the width of each that are probed."""
        first = shapes(self.quick, self.heads, self.width)[0]
        return first.heads, first.width


@dataclass(frozen=True)
class Begin:
    """The start of a probe of a backend; without both while the device starts."""

    backend: str = ""
    probe: Probe | None = None
    timing: bool = False  # after all results are there

    def __str__(self) -> str:
        if self.probe is None:
            return "it was started"
        return f"{'timing ' if self.timing else ''}{self.backend}, {self.probe}"


@dataclass(frozen=True)
class Overhead:
    """Bytes of GPU memory that are no tensors: driver, kernels, BLAS workspace, other processes."""

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
        for shape in shapes(plan.quick, plan.heads, plan.width)
        for mask in (MASKS if shape.members < LONG else TIMED_MASKS)
        if mask != "recomputed" or plan.recomputed
    ]
    for backend in backends:
        for probe in probes:
            yield Begin(backend.name, probe)
            yield case_of(backend, probe, device)
    if is_gpu(device):
        # The memory that a process needs besides its tensors. After the probes: the driver loads a
        # kernel into the memory of the GPU with its first call.
        square = torch.ones(256, 256, device=device)
        square = square @ square
        torch.cuda.synchronize(device)
        del square
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        # The BLAS workspace, which PyTorch allocates with the first product, counts as overhead:
        # the predicted peak of a step does not have it.
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
    given, true = probe_input(probe), expected_result(probe)
    case = case_for(backend.name, probe, "right")
    try:
        result = run_probe(backend, given, device)
        fault = identify_fault(
            probe, given, result, true, lambda: run_probe(backend, given, device, packed=False)
        )
    except RuntimeError as error:
        if type(error).__name__ == "CheckpointError":  # its module brings torch's compiler along
            return dataclasses.replace(
                case, outcome="wrong", fault=RECOMPUTED.name, note=_first_line(error)
            )
        return dataclasses.replace(case, outcome=_refusal(error), note=_first_line(error))
    errors = differences(result, true)
    return dataclasses.replace(
        case,
        outcome="right" if fault is None else "harmless" if fault.harmless else "wrong",
        forward=_figure(errors[0].largest),
        backward=_figure(max(part.largest for part in errors[1:])),
        fault=fault.name if fault else "",
    )


def case_for(backend: str, probe: Probe, outcome: Outcome, note: str = "") -> Case:
    """Return a case without figures."""
    return Case(
        backend,
        probe.dtype,
        probe.mask,
        outcome,
        probe.shape.name,
        probe.shape.members,
        allowed=_figure(tolerance(probe)) or 0.0,
        note=note,
    )


def _refusal(error: RuntimeError) -> Outcome:
    """Return whether a kernel does not exist, is out of memory, or fails."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        # The allocator keeps the blocks of the failed probe, which the next one may need.
        torch.cuda.empty_cache()
        return "memory"
    # PyTorch has no error class for a kernel that does not exist, so its text decides.
    message = str(error).lower()
    absent = any(phrase in message for phrase in _ABSENT)
    return "absent" if absent and not any(name in message for name in _DRIVER) else "failed"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _figure(number: float) -> float | None:
    """Return a number as JSON can hold it; None for NaN and infinity."""
    return float(f"{number:.3g}") if number == number and number != float("inf") else None


def cost_of(backend: Backend, probe: Probe, device: torch.device) -> Cost | None:
    """Measure time and peak memory; None where the backend cannot run."""
    inputs = probe_input.__wrapped__(probe)  # large, and used once
    qkv = inputs.qkv_NK3HE.to(device).permute(2, 0, 3, 1, 4).detach().requires_grad_()
    mask = None if inputs.mask_N11K is None else inputs.mask_N11K.to(device)
    upstream = inputs.upstream_NHKE.to(device)
    gpu, times, peak = is_gpu(device), [], None

    def once() -> None:
        qkv.grad = None
        q, k, v = qkv.unbind(0)
        torch.autograd.backward(backend.function(q, k, v, mask), upstream)
        if gpu:
            # Kernels run asynchronously: without it the clock measures their launch.
            torch.cuda.synchronize(device)

    try:
        # Once without the clock: the first call compiles or loads the kernel.
        once()
        if gpu:
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        for _ in range(REPETITIONS):
            began = time.perf_counter()
            once()
            times.append(time.perf_counter() - began)
        if gpu:
            peak = torch.cuda.max_memory_allocated(device) - before
    except RuntimeError as error:
        _refusal(error)
        return None
    spent = _figure(1000 * statistics.median(times)) or 0.0
    return Cost(backend.name, probe.dtype, probe.mask, probe.shape.name, spent, peak)


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
    # A case that is right in fp32 and wrong in a half precision has a fault of the precision.
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


PATIENCE = 120.0
"""Seconds without an event after which a GPU counts as hanging; its first kernel takes a few."""

_KILL_TIMEOUT = 5  # seconds to wait for a killed process


def measure_in_child(
    backends: tuple[Backend, ...], plan: CheckPlan, device: torch.device, patience: float = PATIENCE
) -> Iterator[Event]:
    """Run all probes in a child process; one that crashes is followed by another child."""
    left = backends
    while left:
        reading, writing = os.pipe()
        # The path comes first, so that no module of the current folder is imported.
        boot = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from aam.network.numerics.check import work; work({writing})"
        )
        # No `multiprocessing.Process`: spawning imports the main module again, so a script that
        # fits a model without `if __name__ == "__main__"` would start itself without end, and
        # Python waits at its end for a child, even for one that is stuck in the driver.
        process = subprocess.Popen(
            [sys.executable, "-c", boot], stdin=subprocess.PIPE, pass_fds=(writing,)
        )
        # The parent's copy: with it open, the end of the child would not be an end of file.
        os.close(writing)
        begun = Begin()
        with contextlib.closing(Connection(reading, writable=False)) as events:
            try:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                    pickle.dump((left, plan, device), stream)
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
                left = left[[backend.name for backend in left].index(begun.backend) + 1 :]
            finally:
                process.kill()
                # A process in an uninterruptible call of the driver does not end even by SIGKILL.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILL_TIMEOUT)


_REMEDY = "look at the kernel log (`dmesg`), use another node, or --device cpu"


def work(writing: int) -> None:
    """Run the child: read the probes from standard input, send events to `writing`."""
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
