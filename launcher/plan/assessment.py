"""Assessment of a launch: every candidate in order of preference, and the reasons against it. Pure.

Order: groups of GPUs by fused attention, whole cards, number and compute capability; for each the
images without a reported fault, those that the catalog prefers for the architecture, then the
catalog's order; then the images for the processor; then the native environment. An image is tried
with each engine of the host. `rules` has the reasons. `aam-launch images`, `explain`, `doctor`,
`submit` and a launch use the same assessment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from launcher.findings import Finding
from launcher.gpus import VENDORS
from launcher.plan.candidates import (
    NATIVE,
    Candidate,
    GpuGroup,
    Reason,
    built_for,
    for_gpus,
    fused,
    serves,
    survey,
)
from launcher.plan.catalog import Image, StackFault
from launcher.plan.inputs import LaunchInputs
from launcher.plan.rules import FIT, RULES, Situation, misfits, reasons
from launcher.plan.settings import AUTO

Assessed = tuple[Candidate, dict[str, Reason]]
"""A candidate, and the reasons against it by rule."""


@dataclass(frozen=True)
class Assessment:
    """Every candidate in order of preference, with the reasons against it by rule."""

    situation: Situation
    candidates: tuple[Assessed, ...]

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
        return first(furthest(own)[1])

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
        return tuple(reason.warning for reason in self.situation.obstacles)


def assess(inputs: LaunchInputs) -> Assessment:
    """Return the candidates of a launch in order of preference, with the reasons against each.

    Args:
        inputs: of the launch.
    """
    situation = _sort(Situation(inputs, inputs.gpu_use, survey(inputs.host, inputs.catalog)))
    found = tuple((c, reasons(c, situation)) for c in _candidates(situation))
    return Assessment(situation, found)


def unrequested(inputs: LaunchInputs) -> LaunchInputs:
    """Return the inputs without a requested image or engine, to see what the host could run."""
    return replace(inputs, settings=replace(inputs.settings, image=AUTO, runtime=AUTO))


def furthest(candidates: Sequence[Assessed]) -> Assessed:
    """Return the candidate that came furthest: its first reason is the last in RULES."""
    order = list(RULES)
    return max(candidates, key=lambda pair: order.index(next(iter(pair[1]))))


def first(found: dict[str, Reason]) -> Reason:
    """Return the reason against a candidate that an error states."""
    return next(iter(found.values()))


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


def _candidates(situation: Situation) -> Iterator[Candidate]:
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
            # Images that do not fit are candidates too: their reasons are the explanation.
            if for_gpus(image):
                own: list[GpuGroup | None] = [g for g in groups if g.vendor == image.vendor]
                ordered += [(image, g) for g in own or [None] if (image.name, id(g)) not in known]
        ordered += [(image, None) for image in processor]
    name = settings.image.value
    if name != "auto" and catalog.image(name) is None:
        ordered += [(_unlisted(name, situation), _best(situation))]
    for image, group in ordered:
        for engine in _engines(situation):
            found = (b for b in inputs.built if b.image == image.name and engine in b.engines)
            yield Candidate(engine, image, next(found, None), group)
    # A capture has another Python environment.
    if host.live or settings.runtime.value == NATIVE:
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
    """Return an image that is requested by a path or a reference."""
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


# --- remarks


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
