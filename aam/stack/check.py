"""Put every probe to every backend; what comes out are events, and at the end a report.

Events, so that whoever waits can say what is being done when nothing comes any more.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

import torch

from aam.contract.check_report import Case, CheckReport, Cost, Outcome
from aam.model.attention import Backend
from aam.stack.faults import HALF, RECOMPUTED, Fault, recognise
from aam.stack.identity import Identity, identify
from aam.stack.judge import differences, tolerance
from aam.stack.probes import DTYPES, MASKS, Probe, Shape, answer, ask, shapes, truth

REPETITIONS = 3
COST_SHAPES = {
    "cuda": (Shape("nucleotide encoder", 512, 4, 30, 32), Shape("sample encoder", 16, 4, 1024, 32)),
    "cpu": (Shape("nucleotide encoder", 128, 4, 30, 32), Shape("sample encoder", 2, 4, 512, 32)),
}
"""Sizes of a batch, smaller on a processor, where only the ratios are of interest."""

LONG = 1000
"""Members from which on only two masks are asked for; on a processor the truth takes a while."""

_ABSENT = ("no available kernel", "no viable backend", "not compiled", "not supported")
"""What torch says of a kernel that does not exist for a device, dtype or mask."""


@dataclass(frozen=True)
class Plan:
    """What a check is to ask.

    Attributes:
        quick: small probes, no times.
        dtypes: names of `probes.DTYPES`.
        recomputed: also ask for recomputation, which makes torch import its compiler.
        heads, width: of the network; 0 for the default.
    """

    quick: bool
    dtypes: tuple[str, ...] = tuple(DTYPES)
    recomputed: bool = False
    heads: int = 0
    width: int = 0

    def probes(self) -> Iterator[Probe]:
        """Yield every probe."""
        for dtype in self.dtypes:
            for shape in shapes(self.quick, self.heads, self.width):
                for mask in MASKS if shape.members < LONG else ("none", "each"):
                    if mask != "recomputed" or self.recomputed:
                        yield Probe(shape, dtype, mask)


@dataclass(frozen=True)
class Begin:
    """Something is about to be asked of a backend.

    Attributes:
        backend: its name; "" while the device starts.
        probe: what is asked; None while the device starts.
        timing: its time is measured, after all answers are there.
    """

    backend: str = ""
    probe: Probe | None = None
    timing: bool = False

    def __str__(self) -> str:
        if self.probe is None:
            return "it was started"
        return f"{'timing ' if self.timing else ''}{self.backend}, {self.probe}"


Event = Begin | Identity | Case | Cost


def measure(backends: tuple[Backend, ...], plan: Plan, device: torch.device) -> Iterator[Event]:
    """Ask everything, in this process."""
    yield Begin()
    yield identify(device)
    for backend in backends:
        for probe in plan.probes():
            yield Begin(backend.name, probe)
            yield case_of(backend, probe, device)
    if plan.quick:
        return
    for backend in backends:
        for probe in _cost_probes(plan, device):
            yield Begin(backend.name, probe, timing=True)
            cost = cost_of(backend, probe, device)
            if cost is not None:
                yield cost


def case_of(backend: Backend, probe: Probe, device: torch.device) -> Case:
    """Ask a backend one question and judge the answer."""
    question, true = ask(probe), truth(probe)
    case = case_for(backend.name, probe, "right")
    try:
        found = answer(backend, question, device)
        fault = recognise(
            probe, question, found, true, lambda: answer(backend, question, device, packed=False)
        )
    except RuntimeError as error:
        if type(error).__name__ == "CheckpointError":  # its module brings torch's compiler along
            return dataclasses.replace(
                case, outcome="wrong", fault=RECOMPUTED.name, note=_first_line(error)
            )
        return dataclasses.replace(case, outcome=_refusal(error), note=_first_line(error))
    apart = differences(found, true)
    return dataclasses.replace(
        case,
        outcome=_outcome(fault),
        forward=_figure(apart[0].largest),
        backward=_figure(max(part.largest for part in apart[1:])),
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


def _outcome(fault: Fault | None) -> Outcome:
    if fault is None:
        return "right"
    return "harmless" if fault.harmless else "wrong"


def _refusal(error: RuntimeError) -> Outcome:
    """Tell a kernel that does not exist from one that breaks."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        torch.cuda.empty_cache()
        return "memory"
    said = str(error).lower()
    return "absent" if any(words in said for words in _ABSENT) else "failed"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _figure(number: float) -> float | None:
    """Return a number that JSON knows; NaN is none of them."""
    return float(f"{number:.3g}") if number == number and number != float("inf") else None


def _cost_probes(plan: Plan, device: torch.device) -> Iterator[Probe]:
    for dtype in plan.dtypes:
        for shape in COST_SHAPES[device.type]:
            for mask in ("none", "each"):
                yield Probe(shape, dtype, mask)


def cost_of(backend: Backend, probe: Probe, device: torch.device) -> Cost | None:
    """Measure time and peak memory; None where the backend cannot."""
    question = ask.__wrapped__(probe)  # large, and asked once
    qkv = question.qkv_NK3HE.to(device).permute(2, 0, 3, 1, 4).detach().requires_grad_()
    mask = None if question.mask_N11K is None else question.mask_N11K.to(device)
    upstream = question.upstream_NHKE.to(device)
    gpu, times, peak = device.type == "cuda", [], None

    def once() -> None:
        qkv.grad = None
        q, k, v = qkv.unbind(0)
        torch.autograd.backward(backend.function(q, k, v, mask), upstream)
        if gpu:
            torch.cuda.synchronize(device)

    try:
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
    """Gather events to a report."""
    began = time.monotonic()
    identity: Identity | None = None
    cases, costs = [], []
    for event in events:
        if isinstance(event, Identity):
            identity = event
        elif isinstance(event, Case):
            cases.append(event)
        elif isinstance(event, Cost):
            costs.append(event)
    assert identity is not None
    return CheckReport(
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        quick=quick,
        seconds=round(time.monotonic() - began, 1),
        identity=dataclasses.asdict(identity),
        cases=tuple(across(cases)),
        costs=tuple(costs),
    )


def across(cases: Collection[Case]) -> Iterator[Case]:
    """Name what only a comparison of dtypes shows: right in fp32 and wrong in a half precision."""
    single = {
        (c.backend, c.mask, c.shape, c.members): c.outcome for c in cases if c.dtype == "fp32"
    }
    for case in cases:
        asked = (case.backend, case.mask, case.shape, case.members)
        if case.outcome == "wrong" and case.dtype != "fp32" and single.get(asked) == "right":
            name = HALF.name if case.fault == "unknown fault" else f"{HALF.name}: {case.fault}"
            yield dataclasses.replace(case, fault=name)
        else:
            yield case
