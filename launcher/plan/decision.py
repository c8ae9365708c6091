"""Decision of a launch: the first image that fits the hardware and that an engine can start. Pure.

`launcher.plan.hardware`, the first stage, orders the images for each group of GPUs; after them come
the images for the processor, then the native environment. Here they are tried with each engine of
the host until one can start. A candidate has the first reason against it, found in the order of
STEPS; if every candidate has one, the refusal is that of the candidate that came furthest.
`aam-launch images`, `explain` and `doctor` show the reasons of all (`assess`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from aam.contract.errors import AamError, NotPermitted, Unavailable, UsageError
from launcher.findings import REQUESTED, Decision, Finding
from launcher.gpus import VENDORS, device_nodes
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Image
from launcher.plan.hardware import (
    MISFITS,
    GpuGroup,
    Hardware,
    Offer,
    counted,
    for_gpus,
    fused,
    hardware_of,
    misfits_of,
)
from launcher.plan.inputs import NATIVE, BuiltImage, LaunchInputs
from launcher.plan.settings import AUTO
from launcher.plan.visible_devices import DeviceSelection

STEPS = (*MISFITS, "libraries", "idle GPUs", "two vendors", "engine", "host libraries",
         "groups", "built", "device nodes")  # fmt: skip
"""The checks of a candidate, in their order."""
WITHOUT_GPU = "add --device cpu (or --image cpu) to compute on the processor"
Step = tuple[str, AamError]
"""A check of STEPS, and what it has against a candidate."""


class Candidate(msgspec.Struct, frozen=True):
    """A way to run a command."""

    engine: str  # name of a container engine, or NATIVE
    image: Image | None = None  # None for the native environment
    # the image where this engine can run it; None if it is not built
    built: BuiltImage | None = None
    group: GpuGroup | None = None  # the GPUs; None: the command computes on the processor
    misfits: tuple[str, ...] = ()  # why the image does not fit the hardware; --force overrides it
    reason: Step | None = None  # the first reason against it; None: it can run
    # why this one is chosen, and no other; of the chosen candidate alone
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Finding, ...] = ()  # remarks for the user; of the chosen candidate alone

    @property
    def name(self) -> str:
        """The name of the image, or NATIVE."""
        return self.image.name if self.image else NATIVE

    @property
    def fits(self) -> bool:
        """The hardware is not against it, or --force overrides that."""
        return self.reason is None or self.reason[0] not in MISFITS

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of one group that are used; empty on a processor."""
        return self.group.gpus if self.group else ()

    @property
    def selection(self) -> DeviceSelection | None:
        """The visible devices of the vendor of these GPUs."""
        return self.group.selection if self.group else None


class Assessment(msgspec.Struct, frozen=True):
    """The hardware, and every candidate with the reason against it: by name, the best first."""

    inputs: LaunchInputs
    hardware: Hardware
    candidates: dict[str, list[Candidate]]

    @property
    def fitting(self) -> tuple[Image, ...]:
        """The images that fit the hardware of the host, best first, built or not."""
        fits = ([c.image for c in candidates if c.fits] for candidates in self.candidates.values())
        return tuple(images[0] for images in fits if images and images[0])

    def decisions(self, chosen: str = "") -> list[Decision]:
        """Return why images are not used; those for vendors that this host lacks are left out."""
        here = {CPU, None, *(gpu.vendor for gpu in self.inputs.host.gpus if gpu.driven)}
        decisions = []
        for name, (first, *_) in self.candidates.items():
            if name != chosen and (first.image is None or first.image.vendor in here):
                why = self.against(name) or "it can run"
                decisions.append(Decision("not used", name, why, "rules"))
        return decisions

    def against(self, name: str) -> str:
        """Return the reason against the candidate of an image that came furthest; "": it runs."""
        candidates = self.candidates.get(name, [])
        if not candidates or not all(candidate.reason for candidate in candidates):
            return ""
        _, (step, reason) = _furthest(candidates)
        return reason.evidence if step in MISFITS else str(reason)


def assess(inputs: LaunchInputs) -> Assessment:
    """Return every image and engine, whatever --image and --runtime, and the reason against it."""
    settings = replace(inputs.settings, image=AUTO, runtime=AUTO)
    inputs = replace(inputs, settings=settings)
    hardware = hardware_of(inputs)
    candidates: dict[str, list[Candidate]] = {}
    for candidate in _candidates(inputs, hardware):
        candidates.setdefault(candidate.name, []).append(candidate)
    return Assessment(inputs, hardware, candidates)


def decide(inputs: LaunchInputs) -> Candidate:
    """Return the first candidate without a reason against it, with the decisions and findings."""
    hardware, settings = hardware_of(inputs), inputs.settings
    chosen, refused = None, list[Candidate]()
    for candidate in _candidates(inputs, hardware):
        if candidate.reason is None:
            chosen = candidate
            break
        refused.append(candidate)
    if hardware.errors and inputs.gpu_use != "never":
        # An error of a variable concerns a launch that uses no other GPU, unless it needs none.
        on_processor = settings.image.value != "auto" and chosen and chosen.image
        avoids = chosen and (chosen.group or (on_processor and on_processor.vendor == CPU))
        if not avoids:
            raise hardware.errors[0]
    if chosen is None:
        raise _refusal(inputs, hardware, refused)
    image, group = chosen.image, chosen.group
    why, source = _why(chosen, refused, inputs, hardware)
    decisions = selected(hardware)
    engine = (REQUESTED, settings.runtime.source)
    if image is None:
        engine = (why, source)
    else:
        decisions.append(Decision("image", image.name, why, source))
        if settings.runtime.value == "auto":
            fact = inputs.host.engine(chosen.engine)
            there = f"{fact.path}, and the image is there for it" if fact else ""
            engine = (there or "assumed for a capture", "host")
    decisions.append(Decision("engine", chosen.engine, *engine))
    # GPUs that stay unused: those of other groups, and further cards that are cut.
    runs = image.name if image else f"PyTorch {inputs.native.torch}"
    for unused_group in hardware.groups:
        if unused_group is not group:
            why = f"{runs} computes on the processor"
            if group:
                why = f"one group of alike GPUs at a time, and {runs} runs on {group}"
            decisions.append(Decision("left out", str(unused_group), why, "host"))
    if group and group.gpus[0].instances:
        cut = [gpu for gpu in group.selection.gpus if gpu.instances and gpu not in group.gpus]
        why = VENDORS[group.vendor].one_instance
        decisions += [Decision("left out", counted(cut), why, "host")] if cut else []
    findings = [*hardware.findings, *hardware.undriven]
    if image and group and image.attention and not fused(image, group.arch):
        evidence = f"{image.name} has no fused attention kernels for {group.arch}"
        findings.append(Finding("note", "Attention takes the math path", evidence))
    if group is None and inputs.gpu_use == "automatic" and settings.image.value == "auto":
        discrete = [gpu for gpu in inputs.host.gpus if gpu.driven and not gpu.integrated]
        remedy = "--device cpu requests that"
        cause = "The command computes on the processor"
        severity: Literal["note", "warning"] = "warning" if discrete else "note"
        findings.append(Finding(severity, cause, hardware.absent, remedy))
    return replace(chosen, decisions=tuple(decisions), findings=tuple(findings))


def selected(hardware: Hardware) -> list[Decision]:
    """Return what is selected of each vendor's GPUs."""
    why = "what jobs and variables leave"
    return [Decision(f"{selection.vendor} GPUs", selection.summary, why, selection.source)
            for selection in hardware.selections]  # fmt: skip


def _candidates(inputs: LaunchInputs, hardware: Hardware) -> Iterator[Candidate]:
    """Yield the candidates in order of preference, each with the reason against it."""
    host, settings, groups = inputs.host, inputs.settings, hardware.groups
    never, name, offers = inputs.gpu_use == "never", settings.image.value, list(hardware.offers)
    if name != "auto" and inputs.catalog.image(name) is None:  # a path, a reference, or a typo
        if not any(built.image == name for built in inputs.built):
            inputs.catalog.require(name)
        best = [offer.group for offer in hardware.served] or list(groups)
        title, source = "an image that is not in the catalog", settings.image.source
        unlisted = Image(name, title, None, {}, source=source)
        group = None if never or not best else best[0]
        offers.append(Offer(unlisted, group, misfits_of(unlisted, group, groups, inputs)))
    # The engine that is requested, those of the host, or the usual one of a capture without any.
    runtime, known_engines = settings.runtime.value, host.engines or host.absent_engines[:1]
    engines = tuple(fact.name for fact in known_engines) or ("container engine",)
    engines = engines if runtime == "auto" else (runtime,)
    for offer in offers if runtime != NATIVE else ():
        image, misfits = offer.image, offer.misfits
        if name not in ("auto", image.name):
            continue
        for engine in engines:
            there = (b for b in inputs.built if b.image == image.name and engine in b.engines)
            against = tuple(misfits.values())
            candidate = Candidate(engine, image, next(there, None), offer.group, against)
            if misfits and not (inputs.request.force and image.name == name):
                cause = f"Image {image.name} does not fit this host"
                reason: Step | None = (next(iter(misfits)), Unavailable(cause, against[0]))
            else:
                reason = _unwanted(candidate, hardware, inputs) or _cannot_start(candidate, inputs)
            yield replace(candidate, reason=reason)
    # A capture may not have recorded its Python environment.
    if runtime == NATIVE or (host.replays and (runtime, name) == ("auto", "auto")):
        same = [group for group in groups if group.vendor == inputs.native.vendor]
        same.sort(key=lambda group: (not group.gpus[0].instances, len(group.gpus)), reverse=True)
        candidate = Candidate(NATIVE, group=same[0] if same and not never else None)
        reason = _unwanted(candidate, hardware, inputs) or _cannot_start(candidate, inputs)
        yield replace(candidate, reason=reason)


# --- reasons against a candidate, in the order of STEPS


def _unwanted(candidate: Candidate, hardware: Hardware, inputs: LaunchInputs) -> Step | None:
    """Return that libraries are missing, GPUs stay idle or two vendors are equal, or None."""
    native, served = inputs.native, hardware.served
    if candidate.engine == NATIVE and native.absent:
        evidence = f"{native.python} has no {', '.join(native.absent)}"
        remedy = f"install them with `{native.install}`"
        cause = "The libraries of the model are not installed"
        return "libraries", Unavailable(cause, evidence, remedy)
    if candidate.group is None:
        idle = _idle_gpus(candidate.image, hardware, inputs)
        return ("idle GPUs", idle) if idle else None
    # Nothing is guessed between groups of two vendors that are equally supported.
    if inputs.settings.image.value != "auto" or inputs.settings.runtime.value == NATIVE:
        return None
    for rival in served:
        best, ours, theirs = served[0], served[0].group, rival.group
        if ours and theirs and theirs.vendor != ours.vendor:
            if rival.fused != best.fused:
                return None
            names = " and ".join(f"{len(g.gpus)} x {g.gpus[0].product}" for g in (ours, theirs))
            remedy = f"choose with --image {best.image.name} or {rival.image.name}"
            cause = "Two vendors, equally supported"
            return "two vendors", UsageError(cause, names, remedy)
    return None


def _idle_gpus(image: Image | None, hardware: Hardware, inputs: LaunchInputs) -> AamError | None:
    """Return why nothing computes on the processor: GPUs would stay idle, or one is requested."""
    use, native, obstacles = inputs.gpu_use, inputs.native, hardware.obstacles
    if use == "never":
        return None
    cause = "A GPU is requested and none can be used"
    if image is not None and inputs.settings.image.value != "auto":
        for_processor = image.vendor == CPU
        if use == "automatic" or (use == "allocated" and for_processor):
            return None
        if not for_processor:
            return Unavailable(cause, hardware.absent, WITHOUT_GPU)
        remedy = "name an image for the GPUs, or leave --device and --gpus out"
        return Unavailable(cause, f"image {image.name}", remedy)
    if hardware.groups and (image is None or not obstacles):
        names = ", ".join(map(str, hardware.groups))
        whose = f"image {image.name}" if image else f"PyTorch {native.torch} in {native.python}"
        remedy = "" if image else "install a PyTorch that can, or "
        remedy += "add --device cpu to compute on the processor"
        cause = "The GPUs would stay idle"
        return Unavailable(cause, f"{whose} cannot use {names}", remedy)
    if obstacles:
        evidence = "; ".join(reason.evidence for reason in obstacles)
        remedies = [*(reason.remedy for reason in obstacles if reason.remedy), WITHOUT_GPU]
        return Unavailable(obstacles[0].cause, evidence, ", or ".join(remedies))
    if use != "automatic":
        return Unavailable(cause, hardware.absent, WITHOUT_GPU)
    return None


def _cannot_start(candidate: Candidate, inputs: LaunchInputs) -> Step | None:
    """Return why an engine cannot start an image, or GPUs cannot be opened."""
    host, runtime = inputs.host, inputs.settings.runtime.value
    image, group, fact = candidate.image, candidate.group, host.engine(candidate.engine)
    if image is not None:
        nothing, instead = "No engine can start a container", ", or choose another --runtime"
        if fact is None and host.replays:
            evidence, remedy = f"no {runtime} on PATH", f"install it{instead}"
            if runtime == "auto":
                known = ", ".join(engine.name for engine in host.absent_engines)
                evidence, remedy = f"none of {known} is on PATH", "install one of them"
            return "engine", Unavailable(nothing, evidence, remedy)
        if fact and fact.obstacle:
            stopped = [e for e in host.engines if e.obstacle and runtime in ("auto", e.name)]
            evidence = "; ".join(f"{engine.name}: {engine.obstacle}" for engine in stopped)
            names = " or ".join(engine.name for engine in stopped)
            remedy = f"let an administrator remove what stops {names}"
            return "engine", Unavailable(nothing, evidence, remedy + instead * (runtime != "auto"))
        # The engine may bring the driver's libraries in by CDI alone, and none is described.
        vendor = VENDORS[group.vendor] if group else None
        needs_cdi = host.traits(candidate.engine).needs_cdi
        if vendor and needs_cdi and vendor.host_libraries and vendor.name not in host.cdi:
            cause = f"{candidate.engine} needs a CDI description of {vendor.title} GPUs"
            remedy = f"`{vendor.cdi[1]}` makes it" if vendor.cdi else "choose another --runtime"
            return "host libraries", Unavailable(cause, "none in /etc/cdi", remedy)
    # No group of the user may exist inside the engine, and a device may need one.
    if fact and group and (fact.maps_root or fact.loses_groups):
        for path in device_nodes(group.gpus):
            node = host.node(path)
            if node and node.mode is not None and node.mode & 0o006 != 0o006:
                why = fact.loses_groups or "which is not mapped"
                evidence = f"{path} belongs to group {node.group or node.gid}; {why}"
                remedy = "choose another --runtime"
                remedy = f"install it, or {remedy}" if fact.loses_groups else remedy
                cause = f"Rootless {fact.name} cannot use the GPUs"
                return "groups", Unavailable(cause, evidence, remedy)
    if image is not None and candidate.built is None:
        folder = inputs.settings.image_dir.value
        engines = [engine.name for engine in host.engines if engine.obstacle is None]
        remedy = f"put a SIF at {folder}, or name one with --image FILE"
        if image.definition:
            usual = not engines or candidate.engine == engines[0]
            with_engine = "" if usual else f" --engine {candidate.engine}"
            remedy = f"`aam-launch images build {image.name}{with_engine}` builds it"
        cause = f"Image {image.name} is not built"
        evidence = f"none for {candidate.engine} in '{folder}'"
        return "built", Unavailable(cause, evidence, remedy)
    denied = next(denials(host, group.gpus), None) if group else None
    return ("device nodes", denied) if denied else None


def denials(host: Host, gpus: Iterable[Gpu]) -> Iterator[AamError]:
    """Yield an error for every device node of `gpus` that is absent or may not be opened."""
    nodes = {node.path: node for node in host.nodes}
    for path, vendor in device_nodes(gpus).items():
        node = nodes.get(path)
        if node is None:
            if host.complete and not VENDORS[vendor].host_libraries:
                remedy = "load the driver again, or ask for a node with GPUs"
                yield Unavailable("A device node is absent", path, remedy)
        elif node.access is False:
            remedy = "ask Slurm for GPUs, such as `--gpus 1`"
            evidence = f"a device cgroup refuses {path}, whose permissions would allow it"
            if not node.refused(host.user):
                group = node.group or str(node.gid)
                remedy = f"`sudo usermod -aG {group} $USER`, then log in again"
                evidence = f"{path} belongs to group {group} (mode {node.mode or 0:o})"
            yield NotPermitted("A GPU may not be used", evidence, remedy)


# --- texts


def _why(
    chosen: Candidate, refused: Sequence[Candidate], inputs: LaunchInputs, hardware: Hardware
) -> tuple[str, str]:
    """Return why a candidate runs after others were `refused`, and the source of that."""
    image, group, settings = chosen.image, chosen.group, inputs.settings
    if image is None:
        if settings.runtime.value == NATIVE:
            return REQUESTED, settings.runtime.source
        reasons = [c.reason[1] for c in sorted(refused, key=lambda c: not c.fits) if c.reason]
        here = f"PyTorch {inputs.native.torch} is installed here"
        return (f"{reasons[0].cause}, and {here}" if reasons else here), "host"
    if settings.image.value != "auto":
        although = f", although {'; '.join(chosen.misfits)}" if chosen.misfits else ""
        return REQUESTED + although, settings.image.source
    if group is None:
        why = hardware.absent
        if inputs.gpu_use == "never":
            why = "the command computes on the processor"
    else:
        why = f"{group} are in its PyTorch's list"
        if preference := image.prefer.get(group.arch):
            why = f"{len(group.gpus)} x {group.gpus[0].product}: {preference}"
        driver = inputs.host.driver(group.vendor)
        if driver is not None:
            ranges = inputs.catalog.drivers.get(group.vendor, ())
            why += f"; {VENDORS[group.vendor].driver_text(driver, ranges)}"
    # Of the images that were preferred, the first that fits and still does not run.
    before = next((c for c in refused if c.fits and c.name != chosen.name), None)
    if before and before.reason:
        why += f"; {before.name} would come before it: {before.reason[1].cause}"
    return why, image.source


def _furthest(candidates: Iterable[Candidate]) -> tuple[Candidate, Step]:
    """Return the candidate whose reason is found last in STEPS, and that reason."""
    pairs = [(candidate, candidate.reason) for candidate in candidates if candidate.reason]
    return max(pairs, key=lambda pair: STEPS.index(pair[1][0]))


def _refusal(inputs: LaunchInputs, hardware: Hardware, refused: Sequence[Candidate]) -> AamError:
    """Return the error of a launch of which every candidate has a reason against it.

    It is the reason against the candidate that came furthest, and what keeps the native
    environment from running.
    """
    settings, host = inputs.settings, inputs.host
    candidate, (step, reason) = _furthest(refused)
    if step in MISFITS:
        if settings.image.value != "auto":
            near = (o.image.name for o in hardware.offers if not o.misfits)
            remedy = f"the nearest fit is --image {best}; " if (best := next(near, "")) else ""
            evidence = "; ".join(candidate.misfits)
            return Unavailable(reason.cause, evidence, f"{remedy}--force runs it anyway")
        if hardware.obstacles and inputs.gpu_use != "never":
            reason = _idle_gpus(candidate.image, hardware, inputs) or reason
        else:
            without = [image for image in inputs.catalog.images if not for_gpus(image)]
            machines = sorted({machine for image in without for machine in image.machines})
            evidence = f"{host.machine}; those without a GPU are built for {', '.join(machines)}"
            remedy = f"install PyTorch here: `{inputs.native.install}`"
            reason = Unavailable("No image is built for this processor", evidence, remedy)
    evidence, remedies = reason.evidence, [reason.remedy]
    natively = [c.reason[1] for c in refused if c.image is None and c.reason]
    if natively and natively[0].evidence != reason.evidence and settings.runtime.value == "auto":
        evidence += f"; natively: {natively[0].evidence}"
        remedies.append(natively[0].remedy)
    remedy = ", or ".join(dict.fromkeys(filter(None, remedies)))
    return type(reason)(reason.cause, evidence, remedy)
