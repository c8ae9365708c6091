"""The decision of a launch: the first candidate without a reason against it runs. Pure.

`assessment` has the candidates in order of preference, with the reasons; if every candidate has
one, the refusal consists of the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aam.contract.errors import AamError, Unavailable
from launcher.findings import REQUESTED, Decision, Finding, Severity
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu
from launcher.plan.assessment import Assessment, assess, first, furthest
from launcher.plan.candidates import (
    NATIVE,
    Candidate,
    GpuGroup,
    Reason,
    counted,
    for_gpus,
    fused,
)
from launcher.plan.catalog import CPU, Image
from launcher.plan.inputs import BuiltImage, LaunchInputs
from launcher.plan.rules import FIT, RULES, Situation, misfits
from launcher.plan.visible_devices import DeviceSelection


@dataclass(frozen=True)
class Choice:
    """The chosen candidate of a launch.

    Attributes:
        engine: its name.
        image: None for native.
        built: the image's place; None for native, or if it is not built (explanations only).
        gpus: the GPUs of one group that are used; empty on a processor.
        selection: the visible devices of their vendor, or None.
        forced: misfits that --force overrode.
    """

    engine: str
    image: Image | None
    built: BuiltImage | None
    gpus: tuple[Gpu, ...]
    selection: DeviceSelection | None
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    forced: tuple[str, ...] = ()


def decide(inputs: LaunchInputs) -> Choice:
    """Return the first candidate without a reason against it.

    Args:
        inputs: of the launch; the host may be one that is only described.
    """
    assessment = assess(inputs)
    chosen = next((c for c, found in assessment.candidates if not found), None)
    situation = assessment.situation
    if situation.gpus.errors and not _avoids_errors(chosen, situation):
        raise situation.gpus.errors[0]
    if chosen is None:
        raise _refusal(assessment)
    image, group, settings = chosen.image, chosen.group, inputs.settings
    forced = misfits(chosen, situation) if inputs.request.force else []
    if image and image.vendor == CPU:
        group = None
    why, source = _why(chosen, assessment, forced)
    decisions = situation.gpus.decisions
    engine = (REQUESTED, settings.runtime.source)
    if image:
        decisions.append(Decision("image", image.name, why, source))
        if settings.runtime.value == "auto":
            fact = inputs.host.engine(chosen.engine)
            there = f"{fact.path}, and the image is there for it" if fact else ""
            engine = (there or "assumed for a capture", "host")
    else:
        engine = (why, source)
    decisions.append(Decision("engine", chosen.engine, *engine))
    runs = image.name if image else f"PyTorch {inputs.native.torch}"
    decisions += _left_out(situation.gpus.groups, group, runs)
    decisions += _passed_over(assessment, chosen)
    findings = [*assessment.findings, *situation.gpus.undriven]
    if image and group and image.attention and not fused(image, group.arch):
        evidence = f"{image.name} has no fused attention kernels for {group.arch}"
        findings.append(Finding("note", "Attention takes the math path", evidence))
    if group is None and situation.use == "automatic" and settings.image.value == "auto":
        discrete = [gpu for gpu in inputs.host.gpus if gpu.driven and not gpu.integrated]
        severity: Severity = "warning" if discrete else "note"
        remedy = "--device cpu requests that"
        cause = "The command computes on the processor"
        findings.append(Finding(severity, cause, situation.gpus.absent, remedy))
    used, selection = (group.gpus, group.selection) if group else ((), None)
    return Choice(
        chosen.engine, image, chosen.built, used, selection, tuple(decisions), tuple(findings),
        tuple(forced),
    )  # fmt: skip


def _avoids_errors(chosen: Candidate | None, situation: Situation) -> bool:
    """Return whether no GPU is needed, or one is used that no error of a variable concerns."""
    if situation.use == "never":
        return True
    requested = situation.inputs.settings.image.value != "auto"
    on_processor = requested and chosen and chosen.image and chosen.image.vendor == CPU
    return bool(chosen and (chosen.group or on_processor))


# --- texts


def _why(chosen: Candidate, assessment: Assessment, forced: Sequence[str]) -> tuple[str, str]:
    """Return why a candidate runs, and the source of that."""
    situation = assessment.situation
    inputs, image, group = situation.inputs, chosen.image, chosen.group
    settings, native = inputs.settings, inputs.native
    if image is None:
        if settings.runtime.value == NATIVE:
            return REQUESTED, settings.runtime.source
        fits = (found for _, found in assessment.candidates if not {*found}.intersection(FIT))
        before = next((found for found in fits if found), None) or next(
            (found for _, found in assessment.candidates if found), {}
        )
        here = f"PyTorch {native.torch} is installed here"
        return (f"{first(before).cause}, and {here}" if before else here), "host"
    if settings.image.value != "auto":
        why = f"{REQUESTED}, although {'; '.join(forced)}" if forced else REQUESTED
        return why, settings.image.source
    if group is None:
        never = situation.use == "never"
        why = "the command computes on the processor" if never else situation.gpus.absent
    else:
        why = f"{group} are in its PyTorch's list"
        if preference := image.prefer.get(group.arch):
            why = f"{len(group.gpus)} x {group.gpus[0].product}: {preference}"
        driver = inputs.host.driver(group.vendor)
        if driver is not None:
            ranges = inputs.catalog.drivers.get(group.vendor, ())
            why += f"; {VENDORS[group.vendor].driver_text(driver, ranges)}"
    # Of the images that were preferred, the first that fits and still does not run.
    for candidate, found in assessment.candidates:
        if candidate is chosen or candidate.name == chosen.name:
            break
        if not {*found}.intersection(FIT):
            return f"{why}; {candidate.name} would come before it: {first(found).cause}", (
                image.source
            )
    return why, image.source


def _left_out(groups: Sequence[GpuGroup], used: GpuGroup | None, runs: str) -> list[Decision]:
    """Return the GPUs that stay unused: those of other groups, and further cards that are cut."""
    decisions = []
    for group in groups:
        if group is not used:
            why = f"{runs} computes on the processor"
            if used:
                why = f"one group of alike GPUs at a time, and {runs} runs on {used}"
            decisions.append(Decision("left out", str(group), why, "host"))
    if used and used.gpus[0].instances:
        cut = [gpu for gpu in used.selection.gpus if gpu.instances and gpu not in used.gpus]
        why = VENDORS[used.vendor].one_instance
        decisions += [Decision("left out", counted(cut), why, "host")] if cut else []
    return decisions


def _passed_over(assessment: Assessment, chosen: Candidate) -> Iterator[Decision]:
    """Yield the other images and the native environment, with the reason against each."""
    names = dict.fromkeys(candidate.name for candidate, _ in assessment.candidates)
    for name in names:
        reason = assessment.against(name)
        if name != chosen.name and reason is not None:
            yield Decision("not used", name, str(reason), "rules")


# --- refusal


def _refusal(assessment: Assessment) -> AamError:
    """Return the error of a launch of which every candidate has a reason against it.

    It is the reason against the candidate that came furthest, and what keeps the native
    environment from running.
    """
    situation, settings = assessment.situation, assessment.situation.inputs.settings
    candidate, found = furthest(assessment.candidates)
    reason = first(found)
    fit = next(iter(found)) in FIT
    if fit and settings.image.value != "auto":
        return _misfit(candidate, assessment)
    if fit and situation.obstacles and situation.use != "never":
        reason = RULES["idle GPUs"](Candidate("", candidate.image), situation) or reason
    elif fit:
        catalog, host = situation.inputs.catalog, situation.inputs.host
        without = [image for image in catalog.images if not for_gpus(image)]
        machines = sorted({machine for image in without for machine in image.machines})
        evidence = f"{host.machine}; those without a GPU are built for {', '.join(machines)}"
        remedy = f"install PyTorch here: `{situation.inputs.native.install}`"
        reason = Reason("No image is built for this processor", evidence, remedy)
    evidence, remedies = reason.evidence, [reason.remedy]
    natively = assessment.against(NATIVE)
    requested = settings.image.value != "auto" or settings.runtime.value != "auto"
    if natively and natively != reason and not requested:
        evidence += f"; natively: {natively.evidence}"
        remedies.append(natively.remedy)
    return reason.error(reason.cause, evidence, ", or ".join(dict.fromkeys(filter(None, remedies))))


def _misfit(candidate: Candidate, assessment: Assessment) -> Unavailable:
    """Return the error for a requested image that does not fit, with the nearest that does."""
    near = [image.name for image in assessment.fitting if image.name != candidate.name][:1]
    remedy = f"the nearest fit is --image {near[0]}; " if near else ""
    cause = f"Image {candidate.name} does not fit this host"
    evidence = "; ".join(misfits(candidate, assessment.situation))
    return Unavailable(cause, evidence, f"{remedy}--force runs it anyway")
