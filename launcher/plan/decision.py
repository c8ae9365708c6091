"""Decision of a launch: the first image that fits the hardware and that an engine can start. Pure.

`launcher.plan.hardware`, the first stage, orders the images for each group of GPUs; after them come
the images for the processor, then the native environment. Here each is tried with each engine of
the host. A candidate has the first reason against it, found in the order of STEPS; if every
candidate has one, the refusal is that of the candidate that came furthest. `aam-launch images`,
`explain`, `doctor`, `submit` and a launch use the same candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from aam.contract.errors import AamError, NotPermitted, Unavailable, UsageError
from launcher.findings import REQUESTED, Decision, Finding, Severity
from launcher.gpus import VENDORS, device_nodes
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Image
from launcher.plan.hardware import (
    MISFITS,
    GpuGroup,
    Hardware,
    Reason,
    counted,
    for_gpus,
    fused,
    hardware_of,
    misfits,
)
from launcher.plan.inputs import NATIVE, BuiltImage, LaunchInputs
from launcher.plan.settings import AUTO
from launcher.plan.visible_devices import DeviceSelection

STEPS = ("request", *MISFITS, "libraries", "idle GPUs", "two vendors", "engine", "host libraries",
         "groups", "built", "device nodes")  # fmt: skip
"""The checks of a candidate, in their order."""
WITHOUT_GPU = "add --device cpu (or --image cpu) to compute on the processor"


class Candidate(msgspec.Struct, frozen=True):
    """A way to run a command."""

    engine: str  # name of a container engine, or NATIVE
    image: Image | None = None  # None for the native environment
    # the image where this engine can run it; None if it is not built
    built: BuiltImage | None = None
    group: GpuGroup | None = None  # the GPUs; None: the command computes on the processor
    misfits: tuple[str, ...] = ()  # why the image does not fit the hardware
    forced: bool = False  # --force overrides the misfits
    reason: Reason | None = None  # the first reason against it; None: it can run
    # why this one is chosen, and no other; of the chosen candidate alone
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Finding, ...] = ()  # remarks for the user; of the chosen candidate alone

    @property
    def name(self) -> str:
        """The name of the image, or NATIVE."""
        return self.image.name if self.image else NATIVE

    @property
    def fits(self) -> bool:
        """The hardware is not against it."""
        return self.forced or not self.misfits

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of one group that are used; empty on a processor."""
        return self.group.gpus if self.group else ()

    @property
    def selection(self) -> DeviceSelection | None:
        """The visible devices of the vendor of these GPUs."""
        return self.group.selection if self.group else None


class Assessment(msgspec.Struct, frozen=True):
    """The hardware, and every candidate in order of preference with the reason against it."""

    inputs: LaunchInputs
    hardware: Hardware
    candidates: tuple[Candidate, ...]

    @property
    def fitting(self) -> tuple[Image, ...]:
        """The images that fit the hardware of the host, best first, built or not."""
        return tuple({c.name: c.image for c in self.candidates if c.image and c.fits}.values())

    def decisions(self, chosen: str = "") -> list[Decision]:
        """Return what is selected of each vendor's GPUs, and why images are not used.

        Images for GPUs of vendors that this host does not have are left out.
        """
        left = "what jobs and variables leave"
        found = [Decision(f"{selection.vendor} GPUs", selection.summary, left, selection.source)
                 for selection in self.hardware.selections]  # fmt: skip
        images = self.inputs.catalog.images
        here = {CPU, None, *(gpu.vendor for gpu in self.inputs.host.gpus if gpu.driven)}
        of_others = {image.name for image in images if image.vendor not in here}
        for name in dict.fromkeys(candidate.name for candidate in self.candidates):
            if name != chosen and name not in of_others:
                reason = self.against(name)
                why = str(reason) if reason else f"it can run too, and {chosen} comes before it"
                found.append(Decision("not used", name, why, "rules"))
        return found

    def of(self, name: str) -> list[Candidate]:
        """Return the candidates of an image, or those that run natively."""
        return [candidate for candidate in self.candidates if candidate.name == name]

    def against(self, name: str) -> Reason | None:
        """Return the reason against the candidate of an image that came furthest; None: it runs."""
        own = self.of(name)
        if not own or any(candidate.reason is None for candidate in own):
            return None
        return _furthest(own)[1]


def assess(inputs: LaunchInputs, requested: bool = True) -> Assessment:
    """Return the candidates of a launch in order of preference, with the reason against each.

    Without `requested` any image and engine may be chosen, whatever --image and --runtime say.
    """
    if not requested:
        settings = replace(inputs.settings, image=AUTO, runtime=AUTO)
        inputs = replace(inputs, settings=settings)
    hardware = hardware_of(inputs)
    name, found = inputs.settings.image.value, []
    for candidate in _candidates(inputs, hardware):
        against: dict[str, str] = {}
        if candidate.image:
            against = misfits(candidate.image, candidate.group, hardware.groups, inputs)
        forced = inputs.request.force and candidate.name == name
        candidate = replace(candidate, misfits=tuple(against.values()), forced=forced)
        reason = _unwanted(candidate, against, hardware, inputs)
        found.append(replace(candidate, reason=reason or _cannot_start(candidate, inputs)))
    return Assessment(inputs, hardware, tuple(found))


def decide(inputs: LaunchInputs) -> Candidate:
    """Return the first candidate without a reason against it, with the decisions and findings."""
    assessment = assess(inputs)
    hardware, settings = assessment.hardware, inputs.settings
    chosen = next((c for c in assessment.candidates if c.reason is None), None)
    if hardware.errors and inputs.gpu_use != "never":
        # An error of a variable concerns a launch that uses no other GPU, unless it needs none.
        on_processor = settings.image.value != "auto" and chosen and chosen.image
        avoids = chosen and (chosen.group or (on_processor and on_processor.vendor == CPU))
        if not avoids:
            raise hardware.errors[0]
    if chosen is None:
        raise _refusal(assessment)
    image, group = chosen.image, chosen.group
    if image and image.vendor == CPU:
        group = None
    why, source = _why(chosen, assessment)
    decisions = assessment.decisions(chosen.name)
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
    for other in hardware.groups:
        if other is not group:
            why = f"{runs} computes on the processor"
            if group:
                why = f"one group of alike GPUs at a time, and {runs} runs on {group}"
            decisions.append(Decision("left out", str(other), why, "host"))
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
        severity: Severity = "warning" if discrete else "note"
        remedy = "--device cpu requests that"
        cause = "The command computes on the processor"
        findings.append(Finding(severity, cause, hardware.absent, remedy))
    overridden = chosen.misfits if inputs.request.force else ()
    return replace(chosen, group=group, misfits=overridden, decisions=tuple(decisions),
                   findings=tuple(findings))  # fmt: skip


def _candidates(inputs: LaunchInputs, hardware: Hardware) -> Iterator[Candidate]:
    """Yield the candidates in order of preference."""
    host, catalog, settings = inputs.host, inputs.catalog, inputs.settings
    groups, never = hardware.groups, inputs.gpu_use == "never"
    ordered: list[tuple[Image, GpuGroup | None]]
    if never:  # an image for GPUs computes on the processor too
        ordered = [(image, None) for image in catalog.images]
        ordered.sort(key=lambda pair: for_gpus(pair[0]))
    else:
        ordered = [(image, group) for group, images in hardware.served for image in images]
        known = {(image.name, id(group)) for image, group in ordered}
        for image in catalog.images:
            # Images that do not fit are candidates too: their reasons are the explanation.
            if for_gpus(image):
                own: list[GpuGroup | None] = [g for g in groups if g.vendor == image.vendor]
                ordered += [(image, g) for g in own or [None] if (image.name, id(g)) not in known]
        ordered += [(image, None) for image in catalog.images if not for_gpus(image)]
    name = settings.image.value
    if name != "auto" and catalog.image(name) is None:  # a path or a reference, or a typo
        if not any(found.image == name for found in inputs.built):
            catalog.require(name)
        best = [group for group, _ in hardware.served] or list(groups)
        title, source = "an image that is not in the catalog", settings.image.source
        unlisted = Image(name, title, None, {}, source=source)
        ordered.append((unlisted, None if never or not best else best[0]))
    # The engine that is requested, those of the host, or the usual one of a capture without any.
    known_engines = host.engines or host.absent_engines[:1]
    engines = tuple(fact.name for fact in known_engines) or ("container engine",)
    if settings.runtime.value not in ("auto", NATIVE):
        engines = (settings.runtime.value,)
    for image, group in ordered:
        for engine in engines:
            there = (b for b in inputs.built if b.image == image.name and engine in b.engines)
            yield Candidate(engine, image, next(there, None), group)
    # A capture may not have recorded its Python environment.
    if host.replays or settings.runtime.value == NATIVE:
        same = [group for group in groups if group.vendor == inputs.native.vendor]
        same.sort(key=lambda group: (not group.gpus[0].instances, len(group.gpus)), reverse=True)
        yield Candidate(NATIVE, group=same[0] if same and not never else None)


# --- reasons against a candidate, in the order of STEPS


def _unwanted(
    candidate: Candidate, against: Mapping[str, str], hardware: Hardware, inputs: LaunchInputs
) -> Reason | None:
    """Return why a candidate is not used, or None.

    Another one is requested, its image does not fit (`against`), the native environment lacks
    libraries, GPUs would stay idle, or two vendors are equally supported.
    """
    native, image, runtime = inputs.native, inputs.settings.image, inputs.settings.runtime
    if runtime.value not in ("auto", candidate.engine):
        evidence = f"{runtime.value}, {runtime.source}"
        return Reason("Another engine is requested", evidence, step="request")
    if runtime.value != NATIVE and image.value not in ("auto", candidate.name):
        evidence = f"{image.value}, {image.source}"
        return Reason("Another image is requested", evidence, step="request")
    if not candidate.fits:
        step, evidence = next(iter(against.items()))
        return Reason(f"Image {candidate.name} does not fit this host", evidence, step=step)
    if candidate.engine == NATIVE and native.absent:
        evidence = f"{native.python} has no {', '.join(native.absent)}"
        remedy = f"install them with `{native.install}`"
        cause = "The libraries of the model are not installed"
        return Reason(cause, evidence, remedy, step="libraries")
    if candidate.group is None:
        return _idle_gpus(candidate.image, hardware, inputs)
    # Nothing is guessed between groups of two vendors that are equally supported.
    if image.value != "auto" or runtime.value == NATIVE or not hardware.served:
        return None
    (best, images), *others = hardware.served
    rivals = [(group, theirs) for group, theirs in others if group.vendor != best.vendor]
    for rival, theirs in rivals[:1]:
        if fused(theirs[0], rival.arch) == fused(images[0], best.arch):
            names = " and ".join(f"{len(g.gpus)} x {g.gpus[0].product}" for g in (best, rival))
            remedy = f"choose with --image {images[0].name} or {theirs[0].name}"
            cause = "Two vendors, equally supported"
            return Reason(cause, names, remedy, UsageError, "two vendors")
    return None


def _idle_gpus(image: Image | None, hardware: Hardware, inputs: LaunchInputs) -> Reason | None:
    """Return why nothing computes on the processor: GPUs would stay idle, or one is requested."""
    use, native, obstacles = inputs.gpu_use, inputs.native, hardware.obstacles
    if use == "never":
        return None
    step, cause = "idle GPUs", "A GPU is requested and none can be used"
    if image is not None and inputs.settings.image.value != "auto":
        for_processor = image.vendor == CPU
        if use == "automatic" or (use == "allocated" and for_processor):
            return None
        evidence = f"image {image.name}" if for_processor else hardware.absent
        remedy = "name an image for the GPUs, or leave --device and --gpus out"
        return Reason(cause, evidence, remedy, step=step)
    if hardware.groups and (image is None or not obstacles):
        names = ", ".join(map(str, hardware.groups))
        whose = f"image {image.name}" if image else f"PyTorch {native.torch} in {native.python}"
        remedy = "" if image else "install a PyTorch that can, or "
        remedy += "add --device cpu to compute on the processor"
        cause = "The GPUs would stay idle"
        return Reason(cause, f"{whose} cannot use {names}", remedy, step=step)
    if obstacles:
        evidence = "; ".join(reason.evidence for reason in obstacles)
        remedies = [*(reason.remedy for reason in obstacles if reason.remedy), WITHOUT_GPU]
        return Reason(obstacles[0].cause, evidence, ", or ".join(remedies), step=step)
    if use != "automatic":
        return Reason(cause, hardware.absent, WITHOUT_GPU, step=step)
    return None


def _cannot_start(candidate: Candidate, inputs: LaunchInputs) -> Reason | None:
    """Return why an engine cannot start an image, or GPUs cannot be opened."""
    host, runtime = inputs.host, inputs.settings.runtime.value
    image, group, fact = candidate.image, candidate.group, host.engine(candidate.engine)
    if image is not None:
        nothing = "No engine can start a container"
        if fact is None and host.replays:
            cause, evidence = "The engine is not installed", f"no {runtime} on PATH"
            remedy = "install it, or choose another --runtime"
            if runtime == "auto":
                known = ", ".join(engine.name for engine in host.absent_engines)
                cause, evidence, remedy = (
                    nothing,
                    f"none of {known} is on PATH",
                    "install one of them",
                )
            return Reason(cause, evidence, remedy, step="engine")
        if fact and fact.obstacle:
            if runtime == "auto" and all(other.obstacle for other in host.engines):
                evidence = "; ".join(f"{e.name}: {e.obstacle}" for e in host.engines)
                names = " or ".join(engine.name for engine in host.engines)
                remedy = f"let an administrator remove what stops {names}"
                return Reason(nothing, evidence, remedy, step="engine")
            cause = f"{fact.name} cannot start a container here"
            remedy = f"let an administrator remove what stops {fact.name}, or choose another "
            remedy += "--runtime"
            return Reason(cause, fact.obstacle, remedy, step="engine")
        # The engine may bring the driver's libraries in by CDI alone, and none is described.
        vendor = VENDORS[group.vendor] if group else None
        needs_cdi = host.traits(candidate.engine).needs_cdi
        if vendor and needs_cdi and vendor.host_libraries and vendor.name not in host.cdi:
            cause = f"{candidate.engine} needs a CDI description of {vendor.title} GPUs"
            remedy = f"`{vendor.cdi_command}` makes it"
            return Reason(cause, "none in /etc/cdi", remedy, step="host libraries")
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
                return Reason(cause, evidence, remedy, step="groups")
    if image is not None and candidate.built is None:
        folder = inputs.settings.image_dir.value
        engines = [engine.name for engine in host.engines if engine.obstacle is None]
        where = f"no {folder}/{image.name}.sif, and {folder}/images.json names none for "
        remedy = f"put a SIF at {folder}, or name one with --image FILE"
        if image.definition:
            usual = not engines or candidate.engine == engines[0]
            with_engine = "" if usual else f" --engine {candidate.engine}"
            remedy = f"`aam-launch images build {image.name}{with_engine}` builds it"
        cause = f"Image {image.name} is not built"
        return Reason(cause, where + candidate.engine, remedy, step="built")
    return next(denials(host, group.gpus), None) if group else None


def denials(host: Host, gpus: Iterable[Gpu]) -> Iterator[Reason]:
    """Yield a reason for every device node of `gpus` that is absent or may not be opened."""
    nodes, step = {node.path: node for node in host.nodes}, "device nodes"
    for path, vendor in device_nodes(gpus).items():
        node = nodes.get(path)
        if node is None:
            if host.complete and not VENDORS[vendor].late_nodes:
                remedy = "load the driver again, or ask for a node with GPUs"
                yield Reason("A device node is absent", path, remedy, step=step)
        elif node.access is False:
            remedy = "ask Slurm for GPUs, such as `--gpus 1`"
            evidence = f"a device cgroup refuses {path}, whose permissions would allow it"
            if not node.refused(host.user):
                group = node.group or str(node.gid)
                remedy = f"`sudo usermod -aG {group} $USER`, then log in again"
                evidence = f"{path} belongs to group {group} (mode {node.mode or 0:o})"
            yield Reason("A GPU may not be used", evidence, remedy, NotPermitted, step)


# --- texts


def _why(chosen: Candidate, assessment: Assessment) -> tuple[str, str]:
    """Return why a candidate runs, and the source of that."""
    inputs, candidates = assessment.inputs, assessment.candidates
    image, group, settings = chosen.image, chosen.group, inputs.settings
    if image is None:
        if settings.runtime.value == NATIVE:
            return REQUESTED, settings.runtime.source
        refused = [c.reason for c in sorted(candidates, key=lambda c: not c.fits) if c.reason]
        here = f"PyTorch {inputs.native.torch} is installed here"
        return (f"{refused[0].cause}, and {here}" if refused else here), "host"
    if settings.image.value != "auto":
        forced = chosen.misfits if inputs.request.force else ()
        why = f"{REQUESTED}, although {'; '.join(forced)}" if forced else REQUESTED
        return why, settings.image.source
    if group is None:
        why = assessment.hardware.absent
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
    for candidate in candidates:
        if candidate.name == chosen.name:
            break
        if candidate.fits and candidate.reason:
            why += f"; {candidate.name} would come before it: {candidate.reason.cause}"
            break
    return why, image.source


def _furthest(candidates: Sequence[Candidate]) -> tuple[Candidate, Reason]:
    """Return the candidate whose reason is found last in STEPS, and that reason."""
    pairs = [(candidate, candidate.reason) for candidate in candidates if candidate.reason]
    return max(pairs, key=lambda pair: STEPS.index(pair[1].step))


def _refusal(assessment: Assessment) -> AamError:
    """Return the error of a launch of which every candidate has a reason against it.

    It is the reason against the candidate that came furthest, and what keeps the native
    environment from running.
    """
    inputs, hardware = assessment.inputs, assessment.hardware
    settings, host = inputs.settings, inputs.host
    candidate, reason = _furthest(assessment.candidates)
    if reason.step in MISFITS:
        if settings.image.value != "auto":
            near = [i.name for i in assessment.fitting if i.name != candidate.name]
            remedy = f"the nearest fit is --image {near[0]}; " if near else ""
            evidence = "; ".join(candidate.misfits)
            return Unavailable(reason.cause, evidence, f"{remedy}--force runs it anyway")
        if hardware.obstacles and inputs.gpu_use != "never":
            reason = _idle_gpus(candidate.image, hardware, inputs) or reason
        else:
            without = [image for image in inputs.catalog.images if not for_gpus(image)]
            machines = sorted({machine for image in without for machine in image.machines})
            evidence = f"{host.machine}; those without a GPU are built for {', '.join(machines)}"
            remedy = f"install PyTorch here: `{inputs.native.install}`"
            reason = Reason("No image is built for this processor", evidence, remedy)
    evidence, remedies = reason.evidence, [reason.remedy]
    natively = assessment.against(NATIVE)
    requested = settings.image.value != "auto" or settings.runtime.value != "auto"
    if natively and natively != reason and not requested:
        evidence += f"; natively: {natively.evidence}"
        remedies.append(natively.remedy)
    return reason.error(reason.cause, evidence, ", or ".join(dict.fromkeys(filter(None, remedies))))
