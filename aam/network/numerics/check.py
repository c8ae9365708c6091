"""Attention check: run every probe on every backend, as a stream of events, and report.

The events show which probe was running when a child process stops. A GPU that hangs, or that
crashes its process, stops only the child. A hanging call cannot be interrupted from within (it may
hold the interpreter lock), so the parent has a timeout. After a crash another child continues with
the backends that follow the one that crashed.
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
from aam.network.numerics.probes import DTYPES, MASKS, MaskKind, Probe, Shape, shapes
from aam.network.numerics.report import Case, CheckReport, Cost, Outcome

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
        first = shapes(self.quick, self.heads, self.width)[0]
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
        for shape in shapes(plan.quick, plan.heads, plan.width)
        for mask in (MASKS if shape.members < LONG else TIMED_MASKS)
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
            f"from aam.network.numerics.check import work; work({writing})"
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
