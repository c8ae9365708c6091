"""Rules of the decision: each returns the reason against a candidate, or None. Pure.

`FIT` are those on the image and the hardware, which --force overrides; `RULES` are all, in the
order in which they are applied. Adding a rule is a function here and its entry in RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from aam.contract.errors import NotPermitted, UsageError
from launcher.gpus import VENDORS, device_nodes, title
from launcher.host.facts import Gpu, Host
from launcher.plan.candidates import (
    NATIVE,
    Candidate,
    GpuGroup,
    GpuSurvey,
    Reason,
    built_for,
    for_gpus,
    fused,
    serves,
)
from launcher.plan.catalog import CPU, Image
from launcher.plan.inputs import LaunchInputs
from launcher.plan.request import GpuUse

WITHOUT_GPU = "add --device cpu (or --image cpu) to compute on the processor"


@dataclass(frozen=True)
class Situation:
    """What every rule may read.

    Attributes:
        inputs: of the launch.
        use: of GPUs by the command (`GpuUse`).
        gpus: the GPUs of the host, sorted.
        served: the groups that an image of the catalog fits, best first, with those images in
            order of preference.
        unserved: the reason for each group that no image fits.
    """

    inputs: LaunchInputs
    use: GpuUse
    gpus: GpuSurvey
    served: tuple[tuple[GpuGroup, tuple[Image, ...]], ...] = ()
    unserved: tuple[Reason, ...] = ()

    @property
    def obstacles(self) -> tuple[Reason, ...]:
        """The reasons why GPUs of this host cannot be used by any image."""
        undriven = (Reason(f.cause, f.evidence, f.remedy) for f in self.gpus.undriven)
        return (*self.unserved, *undriven)


Rule = Callable[[Candidate, Situation], Reason | None]


# --- what --image and --runtime request


def _request(candidate: Candidate, situation: Situation) -> Reason | None:
    settings = situation.inputs.settings
    image, runtime = settings.image.value, settings.runtime.value
    if runtime not in ("auto", candidate.engine):
        return Reason("Another engine is requested", f"{runtime}, {settings.runtime.source}")
    if runtime != NATIVE and image not in ("auto", candidate.name):
        return Reason("Another image is requested", f"{image}, {settings.image.source}")
    return None


# --- image and hardware


def _processor(candidate: Candidate, situation: Situation) -> Reason | None:
    image, machine = candidate.image, situation.inputs.host.machine
    if image is None or built_for(image, machine):
        return None
    evidence = f"it is built for {' and '.join(image.machines)} and the processor is {machine}"
    return _misfit(image, evidence)


def _vendor(candidate: Candidate, situation: Situation) -> Reason | None:
    image, group = candidate.image, candidate.group
    if image is None or not for_gpus(image) or situation.use == "never":
        return None
    vendors = {group.vendor for group in situation.gpus.groups}
    if group is None and vendors:
        names = ", ".join(sorted(title(vendor) for vendor in vendors))
        return _misfit(image, f"it is for GPUs of {title(image.vendor or '')}, not of {names}")
    if group is None:
        return _misfit(image, f"it needs a GPU of {title(image.vendor or '')} and none can be used")
    return None


def _device(candidate: Candidate, situation: Situation) -> Reason | None:
    image, group = candidate.image, candidate.group
    if image is None or group is None or not for_gpus(image):
        return None
    obstacles = dict.fromkeys(gpu.obstacle for gpu in group.gpus if gpu.obstacle)
    return _misfit(image, "; ".join(obstacles)) if obstacles else None


def _architecture(candidate: Candidate, situation: Situation) -> Reason | None:
    image, group = candidate.image, candidate.group
    if image is None or group is None or not image.archs or serves(image, group.arch):
        return None
    if any(gpu.obstacle for gpu in group.gpus):  # its architecture does not matter then
        return None
    arch = "a GPU of unknown architecture" if group.arch == "unknown" else group.arch
    return _misfit(image, f"its PyTorch was not compiled for {arch}")


def _driver(candidate: Candidate, situation: Situation) -> Reason | None:
    image, group, inputs = candidate.image, candidate.group, situation.inputs
    driver = inputs.host.driver(group.vendor) if group else None
    if image is None or driver is None or not for_gpus(image):
        return None
    ranges = inputs.catalog.drivers.get(driver.vendor, ())
    known = VENDORS[driver.vendor]
    evidence = known.driver_misfit(driver, image.pins, image.least_driver, ranges)
    return _misfit(image, evidence) if evidence else None


def _misfit(image: Image, evidence: str) -> Reason:
    return Reason(f"Image {image.name} does not fit this host", evidence)


# --- the native environment and idle GPUs


def _libraries(candidate: Candidate, situation: Situation) -> Reason | None:
    native = situation.inputs.native
    if candidate.engine != NATIVE or not native.absent:
        return None
    evidence = f"{native.python} has no {', '.join(native.absent)}"
    remedy = f"install them with `{native.install}`"
    return Reason("The libraries of the model are not installed", evidence, remedy)


def _idle_gpus(candidate: Candidate, situation: Situation) -> Reason | None:
    """Refuse to compute on the processor where GPUs would stay idle or one is requested."""
    inputs, gpus = situation.inputs, situation.gpus
    use, image = situation.use, candidate.image
    if candidate.group or use == "never":
        return None
    requested = image is not None and inputs.settings.image.value != "auto"
    for_processor = image is not None and image.vendor == CPU
    if requested and (use == "automatic" or (use == "allocated" and for_processor)):
        return None
    if requested:
        evidence = f"image {candidate.name}" if for_processor else gpus.absent
        remedy = "name an image for the GPUs, or leave --device and --gpus out"
        return Reason("A GPU is requested and none can be used", evidence, remedy)
    if gpus.groups and (image is None or not situation.obstacles):
        names = ", ".join(map(str, gpus.groups))
        native = inputs.native
        whose = f"image {candidate.name}" if image else f"PyTorch {native.torch} in {native.python}"
        remedy = "" if image else "install a PyTorch that can, or "
        remedy += "add --device cpu to compute on the processor"
        return Reason("The GPUs would stay idle", f"{whose} cannot use {names}", remedy)
    if situation.obstacles:
        evidence = "; ".join(reason.evidence for reason in situation.obstacles)
        remedies = [reason.remedy for reason in situation.obstacles if reason.remedy]
        cause = situation.obstacles[0].cause
        return Reason(cause, evidence, ", or ".join([*remedies, WITHOUT_GPU]))
    if use != "automatic":
        return Reason("A GPU is requested and none can be used", gpus.absent, WITHOUT_GPU)
    return None


def _two_vendors(candidate: Candidate, situation: Situation) -> Reason | None:
    """Refuse to guess between groups of two vendors that are equally supported."""
    settings, served = situation.inputs.settings, situation.served
    guessed = settings.image.value == "auto" and settings.runtime.value != NATIVE
    if candidate.group is None or not guessed or not served:
        return None
    (best, images), *others = served
    rivals = [(group, theirs) for group, theirs in others if group.vendor != best.vendor]
    if not rivals:
        return None
    rival, theirs = rivals[0]
    if fused(theirs[0], rival.arch) != fused(images[0], best.arch):
        return None
    names = " and ".join(f"{len(g.gpus)} x {g.gpus[0].product}" for g in (best, rival))
    remedy = f"choose with --image {images[0].name} or {theirs[0].name}"
    return Reason("Two vendors, equally supported", names, remedy, UsageError)


# --- engine and storage


def _engine(candidate: Candidate, situation: Situation) -> Reason | None:
    host, image = situation.inputs.host, candidate.image
    runtime = situation.inputs.settings.runtime.value
    if image is None:
        return None
    fact = host.engine(candidate.engine)
    if fact is None and host.live:
        if runtime != "auto":
            remedy = "install it, or choose another --runtime"
            return Reason("The engine is not installed", f"no {runtime} on PATH", remedy)
        known = ", ".join(engine.name for engine in host.absent_engines)
        evidence = f"none of {known} is on PATH"
        return Reason("There is nothing to run aam with", evidence, "install one of them")
    if fact and fact.obstacle:
        usable = any(other.obstacle is None for other in host.engines)
        if runtime == "auto" and not usable:
            evidence = "; ".join(f"{e.name}: {e.obstacle}" for e in host.engines)
            return Reason("There is nothing to run aam with", evidence, "remove an obstacle")
        remedy = "remove that obstacle, or choose another --runtime"
        return Reason(f"{fact.name} cannot start a container here", fact.obstacle, remedy)
    return None


def _host_libraries(candidate: Candidate, situation: Situation) -> Reason | None:
    """Refuse an engine that brings the driver's libraries in by CDI alone, where none is there."""
    host, group = situation.inputs.host, candidate.group
    if candidate.image is None or group is None or not host.traits(candidate.engine).needs_cdi:
        return None
    vendor = VENDORS[group.vendor]
    if not vendor.host_libraries or group.vendor in host.cdi:
        return None
    cause = f"{candidate.engine} needs a CDI description of {vendor.title} GPUs"
    return Reason(cause, "none in /etc/cdi", f"`{vendor.cdi_command}` makes it")


def _groups(candidate: Candidate, situation: Situation) -> Reason | None:
    """Refuse an engine inside which no group of the user exists, where devices need one."""
    host, group = situation.inputs.host, candidate.group
    fact = host.engine(candidate.engine)
    if fact is None or group is None or not (fact.maps_root or fact.loses_groups):
        return None
    for path in device_nodes(group.gpus):
        node = host.node(path)
        if node and node.mode is not None and node.mode & 0o006 != 0o006:
            cause = f"Rootless {fact.name} cannot use the GPUs"
            why = fact.loses_groups or "which is not mapped"
            evidence = f"{path} belongs to group {node.group or node.gid}; {why}"
            remedy = (
                "install it, or choose another --runtime"
                if fact.loses_groups
                else "choose another --runtime"
            )
            return Reason(cause, evidence, remedy)
    return None


def _built(candidate: Candidate, situation: Situation) -> Reason | None:
    image, inputs = candidate.image, situation.inputs
    if image is None or candidate.built is not None:
        return None
    folder = inputs.settings.image_dir.value
    engines = [fact.name for fact in inputs.host.engines if fact.obstacle is None]
    where = f"no {folder}/{image.name}.sif, and {folder}/images.json names none for "
    remedy = f"put a SIF at {folder}, or name one with --image FILE"
    if image.definition:
        usual = not engines or candidate.engine == engines[0]
        with_engine = "" if usual else f" --engine {candidate.engine}"
        remedy = f"`aam-launch images build {image.name}{with_engine}` builds it"
    return Reason(f"Image {image.name} is not built", where + candidate.engine, remedy)


def _device_nodes(candidate: Candidate, situation: Situation) -> Reason | None:
    if candidate.group is None:
        return None
    return next(denials(situation.inputs.host, candidate.group.gpus), None)


def denials(host: Host, gpus: Iterable[Gpu]) -> Iterator[Reason]:
    """Yield a reason for every device node of `gpus` that is absent or may not be opened."""
    nodes = {node.path: node for node in host.nodes}
    for path, vendor in device_nodes(gpus).items():
        node = nodes.get(path)
        if node is None:
            if host.complete and not VENDORS[vendor].late_nodes:
                remedy = "load the driver again, or ask for a node with GPUs"
                yield Reason("A device node is absent", path, remedy)
        elif node.access is False:
            remedy = "ask Slurm for GPUs, such as `--gpus 1`"
            evidence = f"a device cgroup refuses {path}, whose permissions would allow it"
            if not node.refused(host.user):
                group = node.group or str(node.gid)
                remedy = f"`sudo usermod -aG {group} $USER`, then log in again"
                evidence = f"{path} belongs to group {group} (mode {node.mode or 0:o})"
            yield Reason("A GPU may not be used", evidence, remedy, NotPermitted)


FIT: Mapping[str, Rule] = {
    "processor": _processor,
    "vendor": _vendor,
    "device": _device,
    "architecture": _architecture,
    "driver": _driver,
}
RULES: Mapping[str, Rule] = {
    "request": _request,
    **FIT,
    "libraries": _libraries,
    "idle GPUs": _idle_gpus,
    "two vendors": _two_vendors,
    "engine": _engine,
    "host libraries": _host_libraries,
    "groups": _groups,
    "built": _built,
    "device nodes": _device_nodes,
}


def reasons(candidate: Candidate, situation: Situation) -> dict[str, Reason]:
    """Return the reasons against a candidate by rule; none for one that runs.

    With --force the reasons of FIT do not count for an image that is requested by name.
    """
    inputs = situation.inputs
    forced = inputs.request.force and candidate.name == inputs.settings.image.value
    rules = {name: rule for name, rule in RULES.items() if not (forced and name in FIT)}
    found = {name: rule(candidate, situation) for name, rule in rules.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


def misfits(candidate: Candidate, situation: Situation) -> list[str]:
    """Return the evidence that an image does not fit the hardware."""
    found = (rule(candidate, situation) for rule in FIT.values())
    return [reason.evidence for reason in found if reason is not None]
