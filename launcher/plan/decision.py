"""Decision of a launch: the first image that fits the hardware and that an engine can start. Pure.

`launcher.plan.hardware`, the first stage, orders the images; after them comes the native
environment. A candidate has the first reason against it in the order of STEPS; if every candidate
has one, the launch is refused with the reason of the candidate that came furthest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from aam.contract.errors import AamError, NotPermitted, Problem, Unavailable, UsageError
from aam.contract.installation import install_command
from launcher.findings import REQUESTED, Decision
from launcher.gpus import VENDORS, device_nodes
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Image
from launcher.plan.hardware import (
    MISFITS,
    Candidate,
    Hardware,
    Step,
    fault_of,
    for_gpus,
    fused,
    hardware_of,
    misfits_of,
)
from launcher.plan.inputs import NATIVE, LaunchInputs
from launcher.plan.settings import AUTO
from launcher.plan.visible_devices import counted

STEPS = (*MISFITS, "libraries", "idle GPUs", "two vendors", "engine", "host libraries",
         "groups", "built", "device nodes")  # fmt: skip
"""The checks of a candidate, in their order."""
WITHOUT_GPU = "add --device cpu (or --image cpu) to run on the CPU"
IDLE = "A GPU is requested, but none can be used"
NOTHING = "No engine can start a container"
Candidates = dict[str, list[Candidate]]
"""Every candidate with the reason against it: by name, the best first."""


def assess(inputs: LaunchInputs) -> tuple[Hardware, Candidates]:
    """Return the hardware, and every image and engine, whatever --image and --runtime."""
    inputs = replace(inputs, settings=replace(inputs.settings, image=AUTO, runtime=AUTO))
    hardware, candidates = hardware_of(inputs), Candidates()
    for candidate in _candidates(inputs, hardware):
        candidates.setdefault(candidate.name, []).append(candidate)
    return hardware, candidates


def fitting(candidates: Candidates) -> list[str]:
    """Return the images that fit the hardware of the host, best first, built or not."""
    return [name for name, forms in candidates.items() if any(c.fits and c.image for c in forms)]


def against(candidates: Candidates, name: str) -> str:
    """Return the reason against the candidate of an image that came furthest; "": it runs."""
    forms = candidates.get(name, [])
    if not forms or not all(candidate.reason for candidate in forms):
        return ""
    _, (step, reason) = _furthest(forms)
    return reason.evidence if step in MISFITS else str(reason)


def not_used(inputs: LaunchInputs, candidates: Candidates, chosen: str = "") -> list[Decision]:
    """Return why images are not used; those for vendors that this host lacks are left out."""
    vendors = {CPU, None, *(gpu.vendor for gpu in inputs.host.gpus if gpu.driven)}
    return [
        Decision("not used", name, against(candidates, name) or _after(first, inputs, candidates,
                                                                       chosen), "rules")
        for name, (first, *_) in candidates.items()
        if name != chosen and (first.image is None or first.image.vendor in vendors)
    ]  # fmt: skip


def _after(candidate: Candidate, inputs: LaunchInputs, candidates: Candidates, name: str) -> str:
    """Return why a candidate that can run comes after the chosen one, called `name`."""
    chosen, settings = next(iter(candidates.get(name, ())), None), inputs.settings
    requested = (settings.image.value, settings.runtime.value) != ("auto", "auto")
    if requested or chosen is None or chosen.image is None:
        return "another is requested"
    if candidate.image is None:
        return "an image comes before the native environment"
    if candidate.group is None or chosen.group is None:
        return "it is for GPUs; the command uses none"
    if fault := fault_of(candidate.image, candidate.group.arch, inputs.catalog):
        return f"it has a reported fault: {fault.reason}"
    return f"{name} comes before it: {chosen.image.prefer.get(chosen.group.arch) or 'it is newer'}"


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
        if not (chosen and (chosen.group or (on_processor and on_processor.vendor == CPU))):
            raise hardware.errors[0]
    if chosen is None:
        raise _refusal(inputs, hardware, refused)
    image, group, decisions = chosen.image, chosen.group, selected(hardware)
    why, source = _why(chosen, refused, inputs, hardware)
    if image:
        decisions.append(Decision("image", image.name, why, source))
        fact, source = inputs.host.engine(chosen.engine), settings.runtime.source
        why = f"{fact.path}, and the image is there for it" if fact else "assumed for a capture"
        why, source = (why, "host") if settings.runtime.value == "auto" else (REQUESTED, source)
    decisions.append(Decision("engine", chosen.engine, why, source))
    # GPUs that stay unused: GPUs of other groups, and further cards that are cut.
    runs = image.name if image else f"PyTorch {inputs.native.torch}"
    why = inputs.request.cpu_reason or f"{runs} runs on the CPU"
    if group:
        why = f"a run uses GPUs of one model, and {runs} runs on {group}"
    subject = "left out" if group else "GPUs not used"
    decisions += [Decision(subject, str(remaining), why, "host" if group else "command line")
                  for remaining in hardware.groups if remaining is not group]  # fmt: skip
    if group and group.gpus[0].instances:
        cut = [gpu for selection in hardware.selections if selection.vendor == group.vendor
               for gpu in selection.gpus if gpu.instances and gpu not in group.gpus]  # fmt: skip
        why = VENDORS[group.vendor].one_instance
        decisions += [Decision("left out", counted(cut), why, "host")] if cut else []
    findings = [*hardware.findings, *hardware.undriven]
    if image and group and image.attention and not fused(image, group.arch):
        evidence = f"{image.name} has no fused attention kernels for {group.arch}"
        findings.append(Problem("Attention uses the slower math kernels", evidence))
    if group is None and inputs.gpu_use == "automatic" and settings.image.value == "auto":
        discrete = [gpu for gpu in inputs.host.gpus if gpu.driven and not gpu.integrated]
        findings.append(Problem("The command runs on the CPU", hardware.absent,
                                "--device cpu requests that",
                                "warning" if discrete else "note"))  # fmt: skip
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
        offers = [Candidate(unlisted, group, misfits_of(unlisted, group, groups, inputs))]
    # The requested engine, the engines of the host, or the usual one of a capture without any.
    runtime, known_engines = settings.runtime.value, host.engines or host.absent_engines[:1]
    engines = tuple(fact.name for fact in known_engines) or ("container engine",)
    for offer in offers if runtime != NATIVE else ():
        image, misfits = offer.name, offer.misfits
        for engine in engines if runtime == "auto" else (runtime,):
            built_here = (b for b in inputs.built if b.image == image and engine in b.engines)
            candidate = replace(offer, engine=engine, built=next(built_here, None))
            reasons = _reasons(candidate, hardware, inputs)
            if misfits and not (inputs.request.force and image == name):
                cause = f"Image {image} does not fit this host"
                reasons = ((kind, Unavailable(cause, why)) for kind, why in misfits.items())
            yield replace(candidate, reason=next(reasons, None))
    # A capture may not have recorded its Python environment.
    if runtime == NATIVE or (host.replays and (runtime, name) == ("auto", "auto")):
        same = [group for group in groups if group.vendor == inputs.native.vendor]
        same.sort(key=lambda group: (not group.gpus[0].instances, len(group.gpus)), reverse=True)
        candidate = Candidate(group=same[0] if same and not never else None)
        yield replace(candidate, reason=next(_reasons(candidate, hardware, inputs), None))


# --- reasons against a candidate


def _reasons(candidate: Candidate, hardware: Hardware, inputs: LaunchInputs) -> Iterator[Step]:
    """Yield what is against a candidate, in the order of STEPS."""
    host, settings, native, served = inputs.host, inputs.settings, inputs.native, hardware.served
    image, group, runtime = candidate.image, candidate.group, settings.runtime.value
    fact = host.engine(candidate.engine)
    extra = "model" if inputs.request.needs_pytorch else "study"
    absent = [name for name in native.absent if extra == "model" or name != "torch"]
    if image is None and absent:
        evidence = f"{native.python} has no {', '.join(absent)}"
        remedy = f"install them with `{install_command(extra, native.python)}`"
        cause = "The libraries of the model are not installed"
        yield "libraries", Unavailable(cause, evidence, remedy)
    if group is None and (idle := _idle(image, hardware, inputs)):
        yield "idle GPUs", idle
    # Nothing is guessed between groups of two vendors that are equally supported.
    if image and group and settings.image.value == "auto":
        best, first = served[0], served[0].group
        rivals = (c for c in served if first and c.group and c.group.vendor != first.vendor)
        if (rival := next(rivals, None)) and rival.fused == best.fused:
            names = " and ".join(f"{len(c.gpus)} x {c.gpus[0].product}" for c in (best, rival))
            remedy = f"choose with --image {best.name} or {rival.name}"
            yield "two vendors", UsageError("Two vendors, equally supported", names, remedy)
    instead = ", or choose another --runtime"
    if image and fact is None and host.replays:
        evidence, remedy = f"no {runtime} on PATH", f"install it{instead}"
        if runtime == "auto":
            engine_names = ", ".join(engine.name for engine in host.absent_engines)
            evidence, remedy = f"none of {engine_names} is on PATH", "install one of them"
        yield "engine", Unavailable(NOTHING, evidence, remedy)
    if image and fact and fact.obstacle:
        stopped = [e for e in host.engines if e.obstacle and runtime in ("auto", e.name)]
        evidence = "; ".join(f"{engine.name}: {engine.obstacle}" for engine in stopped)
        names = " or ".join(engine.name for engine in stopped)
        remedy = f"let an administrator remove what stops {names}{instead * (runtime != 'auto')}"
        yield "engine", Unavailable(NOTHING, evidence, remedy)
    # Some engines mount the driver's libraries only by CDI; it needs a description of the GPUs.
    vendor = VENDORS[group.vendor] if group and image else None
    needs_cdi = vendor and vendor.host_libraries and host.traits(candidate.engine).needs_cdi
    if vendor and needs_cdi and vendor.name not in host.cdi:
        cause = f"{candidate.engine} needs a CDI description of {vendor.title} GPUs"
        remedy = f"`{vendor.cdi[1]}` makes it" if vendor.cdi else "choose another --runtime"
        yield "host libraries", Unavailable(cause, "none in /etc/cdi", remedy)
    # Rootless engines may drop the user's groups, and a device may belong to one.
    if fact and (fact.maps_root or fact.loses_groups):
        for node in filter(None, map(host.node, device_nodes(candidate.gpus))):
            if node.mode is not None and node.mode & 0o006 != 0o006:
                why = fact.loses_groups or "which is not mapped"
                evidence = f"{node.path} belongs to group {node.group or node.gid}; {why}"
                remedy = f"{'install it, or ' * bool(fact.loses_groups)}choose another --runtime"
                cause = f"Rootless {fact.name} cannot use the GPUs"
                yield "groups", Unavailable(cause, evidence, remedy)
    if image and candidate.built is None:
        folder = settings.image_dir.value
        usable = [engine.name for engine in host.engines if engine.obstacle is None]
        remedy = f"put a SIF at {folder}, or name one with --image FILE"
        if image.definition:
            usual = not usable or candidate.engine == usable[0]
            with_engine = "" if usual else f" --engine {candidate.engine}"
            remedy = f"`aam-launch images build {image.name}{with_engine}` builds it"
        evidence = f"none for {candidate.engine} in '{folder}'"
        yield "built", Unavailable(f"Image {image.name} is not built", evidence, remedy)
    yield from (("device nodes", denied) for denied in denials(host, candidate.gpus))


def _idle(image: Image | None, hardware: Hardware, inputs: LaunchInputs) -> AamError | None:
    """Return why nothing runs on the CPU: GPUs would stay idle, or one is requested."""
    use, native, obstacles = inputs.gpu_use, inputs.native, hardware.obstacles
    if use == "never":
        return None
    if image is not None and inputs.settings.image.value != "auto":
        for_processor = image.vendor == CPU
        if use == "automatic" or (use == "allocated" and for_processor):
            return None
        if not for_processor:
            return Unavailable(IDLE, hardware.absent, WITHOUT_GPU)
        remedy = "name an image for the GPUs, or leave --device and --gpus out"
        return Unavailable(IDLE, f"image {image.name}", remedy)
    if hardware.groups and (image is None or not obstacles):
        names = ", ".join(map(str, hardware.groups))
        whose = f"image {image.name}" if image else f"PyTorch {native.torch} in {native.python}"
        remedy = "" if image else "install a PyTorch that can, or "
        remedy += "add --device cpu to run on the CPU"
        return Unavailable("The GPUs would stay idle", f"{whose} cannot use {names}", remedy)
    if obstacles:
        evidence = "; ".join(reason.evidence for reason in obstacles)
        remedies = [*(reason.remedy for reason in obstacles if reason.remedy), WITHOUT_GPU]
        return Unavailable(obstacles[0].cause, evidence, ", or ".join(remedies))
    return None if use == "automatic" else Unavailable(IDLE, hardware.absent, WITHOUT_GPU)


def denials(host: Host, gpus: Iterable[Gpu]) -> Iterator[AamError]:
    """Yield an error for every device node of `gpus` that is absent or may not be opened."""
    for path, vendor in device_nodes(gpus).items():
        node = host.node(path)
        if node is None:
            if host.complete and not VENDORS[vendor].host_libraries:
                remedy = "load the driver again, or ask for a node with GPUs"
                yield Unavailable("A device node is absent", path, remedy)
        elif node.access is False:
            remedy = "ask Slurm for GPUs, such as `--gpus 1`"
            evidence = f"a device cgroup refuses {path} although its permissions allow it"
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
        installed = f"PyTorch {inputs.native.torch} is installed here"
        return (f"{reasons[0].cause}, and {installed}" if reasons else installed), "host"
    if settings.image.value != "auto":
        although = f", although {'; '.join(chosen.misfits.values())}" if chosen.misfits else ""
        return REQUESTED + although, settings.image.source
    if group is None:
        why = inputs.request.cpu_reason.partition(";")[0] or hardware.absent
    else:
        why = f"{group} are in its PyTorch's list"
        if preference := image.prefer.get(group.arch):
            why = f"{len(group.gpus)} x {group.gpus[0].product}: {preference}"
        if driver := inputs.host.driver(group.vendor):
            ranges = inputs.catalog.drivers.get(group.vendor, ())
            why += f"; {VENDORS[group.vendor].driver_text(driver, ranges)}"
    # Of the images that were preferred, the first that fits and still does not run.
    better = next((c for c in refused if c.fits and c.name != chosen.name), None)
    if better and better.reason:
        why += f"; {better.name} would come before it: {better.reason[1].cause}"
    return why, image.source


def _furthest(candidates: Iterable[Candidate]) -> tuple[Candidate, Step]:
    """Return the candidate whose reason is found last in STEPS, and that reason."""
    pairs = [(candidate, candidate.reason) for candidate in candidates if candidate.reason]
    return max(pairs, key=lambda pair: STEPS.index(pair[1][0]))


def _refusal(inputs: LaunchInputs, hardware: Hardware, refused: Sequence[Candidate]) -> AamError:
    """Return the reason against the candidate that came furthest, and against the native one."""
    settings, host = inputs.settings, inputs.host
    candidate, (step, reason) = _furthest(refused)
    if step in MISFITS:
        if settings.image.value != "auto":
            near = fitting(assess(inputs)[1])
            remedy = f"the nearest fit is --image {near[0]}; " if near else ""
            evidence = "; ".join(candidate.misfits.values())
            return Unavailable(reason.cause, evidence, f"{remedy}--force runs it anyway")
        if hardware.obstacles and inputs.gpu_use != "never":
            reason = _idle(candidate.image, hardware, inputs) or reason
        else:
            without = [image for image in inputs.catalog.images if not for_gpus(image)]
            machines = sorted({machine for image in without for machine in image.machines})
            evidence = f"{host.machine}; images without a GPU are built for {', '.join(machines)}"
            remedy = f"install PyTorch here: `{install_command(python=inputs.native.python)}`"
            reason = Unavailable("No image is built for this processor", evidence, remedy)
    evidence, remedies = reason.evidence, [reason.remedy]
    natively = [c.reason[1] for c in refused if c.image is None and c.reason]
    if natively and natively[0].evidence != reason.evidence and settings.runtime.value == "auto":
        evidence += f"; natively: {natively[0].evidence}"
        remedies.append(natively[0].remedy)
    remedy = ", or ".join(dict.fromkeys(filter(None, remedies)))
    return type(reason)(reason.cause, evidence, remedy)
