"""The decision of a launch: candidates in order of preference, of which the first runs. Pure.

Order: groups of GPUs by fused attention, whole cards and number; for each the images without a
reported fault, those that the catalog prefers for the architecture, then the catalog's order; then
the images for the processor; then the native environment. An image is tried with each engine of
the host. `rules` has the reasons against a candidate; if every candidate has one, the refusal
consists of the reasons. `aam-launch images`, `explain`, `doctor`, `submit` and a launch use the
same `Assessment`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aam.contract.errors import AamError, Unavailable
from launcher.findings import REQUESTED, Decision, Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu
from launcher.plan.candidates import (
    ENVIRONMENT,
    NATIVE,
    Candidate,
    GpuGroup,
    Reason,
    built_for,
    counted,
    for_gpus,
    fused,
    serves,
    survey,
)
from launcher.plan.catalog import CPU, Image, StackFault
from launcher.plan.inputs import BuiltImage, LaunchInputs
from launcher.plan.rules import FIT, RULES, Situation, misfits, reasons
from launcher.plan.settings import AUTO
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


@dataclass(frozen=True)
class Assessment:
    """Every candidate in order of preference, with the reasons against it by rule."""

    situation: Situation
    candidates: tuple[tuple[Candidate, dict[str, Reason]], ...]

    @property
    def fitting(self) -> tuple[Image, ...]:
        """The images that fit the hardware of the host, best first, built or not."""
        images = (c.image for c, found in self.candidates if not {*found}.intersection(FIT))
        return tuple({image.name: image for image in images if image}.values())

    def against(self, name: str) -> Reason | None:
        """Return the reason against the candidate of an image that came nearest; None: it runs."""
        own = [(c, found) for c, found in self.candidates if c.name == name]
        if not own or any(not found for _, found in own):
            return None
        return _first(max(own, key=lambda pair: _stage(pair[1]))[1])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Remarks about GPUs, drivers and images, whatever is chosen."""
        notes = list(self.situation.gpus.findings)
        for group, images in self.situation.served:
            notes += _newer(group, images, self.situation)
            notes += _faulty(group, images, self.situation)
        return tuple(notes)

    @property
    def obstacles(self) -> tuple[Finding, ...]:
        """The GPUs that no image can use, with the reasons."""
        found = self.situation.obstacles
        return tuple(Finding("warning", r.cause, r.evidence, r.remedy) for r in found)


def assess(inputs: LaunchInputs, engines: Sequence[str] = ()) -> Assessment:
    """Return the candidates of a launch in order of preference, with the reasons against each.

    Args:
        inputs: of the launch.
        engines: those to try, by default those of the host and the native environment.

    Raises:
        UsageError: an unknown image.
        ConfigurationError: variables that name no GPU or contradict each other.
    """
    situation = _sort(Situation(inputs, inputs.gpu_use, survey(inputs.host, inputs.catalog)))
    found = tuple((c, reasons(c, situation)) for c in _candidates(situation, engines))
    return Assessment(situation, found)


def unrequested(inputs: LaunchInputs) -> LaunchInputs:
    """Return the inputs without a requested image or engine, to see what the host could run."""
    return replace(inputs, settings=replace(inputs.settings, image=AUTO, runtime=AUTO))


def decide(inputs: LaunchInputs, engines: Sequence[str] = ()) -> Choice:
    """Return the first candidate without a reason against it.

    Args:
        inputs: of the launch; the host may be one that is only described.
        engines: see `assess`.

    Raises:
        Unavailable: every candidate has a reason against it.
        UsageError: an unknown image, or GPUs of two vendors between which nothing decides.
        ConfigurationError: variables that name no GPU or contradict each other.
    """
    assessment = assess(inputs, engines)
    chosen = next((c for c, found in assessment.candidates if not found), None)
    if chosen is None:
        raise _refusal(assessment)
    situation = assessment.situation
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
    used, selection = (group.gpus, group.selection) if group else ((), None)
    return Choice(
        chosen.engine, image, chosen.built, used, selection, tuple(decisions), tuple(findings),
        tuple(forced),
    )  # fmt: skip


def decide_stack(inputs: LaunchInputs) -> tuple[Image, Choice]:
    """Return the image whose lock a virtual environment of this host is made from.

    Raises:
        Unavailable, UsageError, ConfigurationError: see `decide`.
    """
    locked = tuple(image for image in inputs.catalog.images if image.arguments)
    catalog = replace(inputs.catalog, images=locked)
    choice = decide(replace(inputs, catalog=catalog), (ENVIRONMENT,))
    assert choice.image is not None
    return choice.image, choice


# --- order


def _sort(situation: Situation) -> Situation:
    """Return the situation with the images that fit each group, both in order of preference."""
    inputs = situation.inputs
    served: list[tuple[GpuGroup, tuple[Image, ...]]] = []
    unserved = []
    for group in situation.gpus.groups:
        own = [image for image in inputs.catalog.images if image.vendor == group.vendor]
        against = {i.name: misfits(Candidate("", i, group=group), situation) for i in own}
        fitting = [image for image in own if not against[image.name]]
        if fitting:
            order = {i.name: (_fault(i, group, situation) is not None, group.arch not in i.prefer)
                     for i in fitting}  # fmt: skip
            fitting.sort(key=lambda image: order[image.name])
            served.append((group, tuple(fitting)))
            continue
        # By the example of the least demanding image: the oldest one compiled for this processor
        # and these GPUs.
        why = f"the catalog has no image for GPUs of {VENDORS[group.vendor].title}"
        if own:
            here = [image for image in own if built_for(image, inputs.host.machine)] or own
            oldest = ([image for image in here if serves(image, group.arch)] or here)[-1]
            why = f"{oldest.name}: {'; '.join(against[oldest.name])}"
        unserved.append(Reason("No image serves these GPUs", f"{group}; {why}"))

    def rank(pair: tuple[GpuGroup, tuple[Image, ...]]) -> tuple[bool, bool, int]:
        group, images = pair
        return fused(images[0], group.arch), not group.gpus[0].instances, len(group.gpus)

    served.sort(key=rank, reverse=True)
    return replace(situation, served=tuple(served), unserved=tuple(unserved))


def _candidates(situation: Situation, engines: Sequence[str]) -> Iterator[Candidate]:
    """Yield the candidates in order of preference."""
    inputs, groups = situation.inputs, situation.gpus.groups
    host, catalog, settings = inputs.host, inputs.catalog, inputs.settings
    processor = [image for image in catalog.images if not for_gpus(image)]
    ordered: list[tuple[Image, GpuGroup | None]]
    if situation.use == "never":  # an image for GPUs computes on the processor too
        ordered = [(image, None) for image in catalog.images]
        ordered.sort(key=lambda pair: for_gpus(pair[0]))
    else:
        ordered = [(image, group) for group, images in situation.served for image in images]
        known = {(image.name, id(group)) for image, group in ordered}
        for image in catalog.images:
            if for_gpus(image):
                own: list[GpuGroup | None] = [g for g in groups if g.vendor == image.vendor]
                ordered += [(image, g) for g in own or [None] if (image.name, id(g)) not in known]
        ordered += [(image, None) for image in processor]
    name = settings.image.value
    if name != "auto" and catalog.image(name) is None:
        ordered += [(_unlisted(name, situation), _best(situation))]
    for image, group in ordered:
        for engine in engines or _engines(situation):
            found = (b for b in inputs.built if b.image == image.name and engine in b.engines)
            yield Candidate(engine, image, next(found, None), group)
    # A capture has another Python environment.
    if not engines and (host.live or settings.runtime.value == NATIVE):
        same = [group for group in groups if group.vendor == inputs.native.vendor]
        same.sort(key=lambda group: (not group.gpus[0].instances, len(group.gpus)), reverse=True)
        used = same[0] if same and situation.use != "never" else None
        yield Candidate(NATIVE, group=used)


def _engines(situation: Situation) -> tuple[str, ...]:
    """Return the engines to try: that requested, those of the host, or the usual one."""
    host, runtime = situation.inputs.host, situation.inputs.settings.runtime.value
    if runtime not in ("auto", NATIVE):
        return (runtime,)
    known = host.engines or host.absent_engines[:1]
    return tuple(fact.name for fact in known) or ("container engine",)


def _unlisted(name: str, situation: Situation) -> Image:
    """Return an image that is requested by a path or a reference.

    Raises:
        UsageError: there is no such image.
    """
    inputs = situation.inputs
    if not any(found.image == name for found in inputs.built):
        return inputs.catalog.require(name)
    source = inputs.settings.image.source
    return Image(name, "an image that is not in the catalog", None, {}, source=source)


def _best(situation: Situation) -> GpuGroup | None:
    groups = [group for group, _ in situation.served] or list(situation.gpus.groups)
    return groups[0] if groups and situation.use != "never" else None


def _fault(image: Image, group: GpuGroup, situation: Situation) -> StackFault | None:
    """Return a reported fault of an image that no option and no variable avoids."""
    faults = situation.inputs.catalog.faults_of(group.vendor, image.pins.get("torch"), group.arch)
    return next((fault for fault in faults if not fault.flags and not fault.variables), None)


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
        return (f"{_first(before).cause}, and {here}" if before else here), "host"
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
    for candidate, found in assessment.candidates:
        if candidate is chosen or candidate.name == chosen.name:
            break
        if not {*found}.intersection(FIT):
            return f"{why}; {candidate.name} would come before it: {_first(found).cause}", (
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


def _newer(group: GpuGroup, fitting: Sequence[Image], situation: Situation) -> Iterator[Finding]:
    """Yield a note on the newest image that only the kernel driver keeps from serving GPUs."""
    for image in situation.inputs.catalog.images:
        if image.vendor != group.vendor:
            continue
        if image in fitting:
            return
        candidate = Candidate("", image, group=group)
        against = [name for name, rule in FIT.items() if rule(candidate, situation)]
        if against == ["driver"]:
            (reason,) = misfits(candidate, situation)
            evidence = f"{image.name} ({image.title}) for {group}: {reason}"
            yield Finding("note", "A newer kernel driver would serve a newer image", evidence, "")
            return


def _faulty(group: GpuGroup, fitting: Sequence[Image], situation: Situation) -> Iterator[Finding]:
    """Yield a note for each image that a reported fault ranks below those without."""
    faults = {image.name: _fault(image, group, situation) for image in fitting}
    for name, fault in faults.items():
        if fault is not None and not all(faults.values()):
            evidence = f"{name} for {group}: {fault.reason} ({fault.source})"
            remedy = f"`aam-launch --image {name} check` measures whether it occurs"
            yield Finding("note", "A reported fault ranks a stack below others", evidence, remedy)


# --- refusal


def _stage(found: dict[str, Reason]) -> int:
    """Return how far a candidate came: the place of its first reason in RULES."""
    return list(RULES).index(next(iter(found)))


def _first(found: dict[str, Reason]) -> Reason:
    return next(iter(found.values()))


def _refusal(assessment: Assessment) -> AamError:
    """Return the error of a launch of which every candidate has a reason against it.

    It is the reason against the candidate that came furthest, and what keeps the native
    environment from running.
    """
    situation, settings = assessment.situation, assessment.situation.inputs.settings
    candidate, found = max(assessment.candidates, key=lambda pair: _stage(pair[1]))
    reason = _first(found)
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
    if natively and natively is not reason and not requested:
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
