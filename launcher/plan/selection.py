"""Selection of GPUs, image and engine, with the reason of each. Pure.

An image fits when it is built for the processor and for the vendor of the GPUs, its PyTorch was
compiled for their arch, and their kernel driver supports its user space (an unknown driver is no
obstacle). Of the images that fit, one that is built comes before one that is not, then the
catalog's preference for the arch, then its order. GPUs that no image serves are never passed over
in silence: the processor is used only if there is no GPU to use, or if the user chose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aam.contract.errors import Unavailable
from launcher.findings import REQUESTED, Decision, Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Host
from launcher.plan import refusals
from launcher.plan.catalog import CPU, Image
from launcher.plan.gpu_groups import GpuGroup, GpuSurvey, best, counted, left_out, survey
from launcher.plan.image_fit import fast, for_processors, problems, processor_problems
from launcher.plan.inputs import BuiltImage, LaunchInputs
from launcher.plan.visible_devices import DeviceSelection

NATIVE = "native"


@dataclass(frozen=True)
class Choice:
    """The chosen GPUs, image and engine of a launch.

    Attributes:
        engine: its name.
        image: None for native.
        built: the image's place; None for native, or if it is not built (explanations only).
        gpus: the GPUs of one group that are used; empty on a processor.
        selection: the visible devices of their vendor, or None.
        forced: problems that --force overrode.
    """

    engine: str
    image: Image | None
    built: BuiltImage | None
    gpus: tuple[Gpu, ...]
    selection: DeviceSelection | None
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    forced: tuple[str, ...] = ()


def choose(inputs: LaunchInputs) -> Choice:
    """Decide which GPUs, image and engine to use.

    Raises:
        Unavailable: no image fits or serves the GPUs, none is built and native is impossible, or
            a GPU is required and none can be used.
        UsageError: an unknown image, or GPUs of two vendors between which nothing decides.
        ConfigurationError: variables that name no GPU or contradict each other.
    """
    settings = inputs.settings
    gpus = survey(inputs.host, inputs.catalog, {found.image for found in inputs.built})
    if settings.text("runtime") == NATIVE:
        return _native(inputs, gpus, settings.source("runtime"), REQUESTED)
    engines = _engines(inputs.host, settings.text("runtime"))
    if settings.text("image") != "auto":
        return _named(inputs, gpus, engines)
    return _automatic(inputs, gpus, engines)


def _automatic(inputs: LaunchInputs, gpus: GpuSurvey, engines: tuple[str, ...]) -> Choice:
    """Return the choice of the best image that fits and is built, or of the native stack."""
    host, catalog, native, use = inputs.host, inputs.catalog, inputs.native, inputs.gpu_use
    # A capture has another Python environment.
    automatic = inputs.settings.text("runtime") == "auto"
    native_possible = automatic and not native.absent and host.live
    group = best(gpus.groups) if use != "never" else None
    here = f"PyTorch {native.torch} is"
    if group is None and use != "never":
        unserved = {group.gpus[0].vendor for group in gpus.groups}
        if native_possible and native.vendor in unserved:
            why = f"no image serves the GPUs, and {here} installed here"
            return _native(inputs, gpus, "host", why)
        refusals.require_served(gpus, host, use)
    candidates = group.images if group else for_processors(catalog, host)
    if use == "never":  # an image for GPUs computes on the processor too
        candidates += tuple(image for group in gpus.groups for image in group.images)
    for number, image in enumerate(candidates):
        place, engine = _place(image, engines, inputs.built, host)
        if place and engine:
            why = _why(inputs, gpus, image, group)
            if number:
                why += f"; {candidates[0].name} would come before it but is not built"
            return _contained(inputs, gpus, engine, image, place, group, why, image.source)
    if not native_possible:
        if not candidates:
            raise refusals.wrong_processor(catalog, host, native.install)
        raise refusals.not_runnable(candidates[0], engines, native.install, inputs.settings, host)
    if not candidates:
        why = f"no image is built for {host.machine}, and {here} installed here"
    elif not engines:
        why = f"there is no engine that can start a container, and {here} here"
    else:
        why = f"no image is built ({candidates[0].name} would suit), and {here} installed here"
    return _native(inputs, gpus, "host", why, group)


def _engines(host: Host, runtime: str) -> tuple[str, ...]:
    """Return the engines to try.

    Raises:
        Unavailable: the requested one is not installed or cannot start a container.
    """
    if runtime == "auto":
        return tuple(engine.name for engine in host.engines if engine.obstacle is None)
    fact = host.engine(runtime)
    if fact is None and host.live:
        remedy = "install it, or choose another --runtime"
        raise Unavailable("The engine is not installed", f"no {runtime} on PATH", remedy)
    if fact and fact.obstacle:
        remedy = "remove that obstacle, or choose another --runtime"
        raise Unavailable(f"{runtime} cannot start a container here", fact.obstacle, remedy)
    return (runtime,)


def _place(
    image: Image, engines: Sequence[str], built: Sequence[BuiltImage], host: Host
) -> tuple[BuiltImage | None, str | None]:
    """Return the built image and the first engine that can run it."""
    # For a capture without engines, the first registered engine is assumed.
    assumed = () if host.live or host.engines else host.absent_engines[:1]
    for engine in engines or tuple(fact.name for fact in assumed):
        if not (host.traits(engine).needs_cdi and refusals.lacks_cdi(image, host)):
            for found in built:
                if found.image == image.name and engine in found.engines:
                    return found, engine
    return None, None


def _named(inputs: LaunchInputs, gpus: GpuSurvey, engines: tuple[str, ...]) -> Choice:
    """Return the choice of the requested image, if it fits."""
    host, catalog, settings, use = inputs.host, inputs.catalog, inputs.settings, inputs.gpu_use
    name, source = settings.text("image"), settings.source("image")
    if catalog.image(name) is None and any(found.image == name for found in inputs.built):
        image = Image(name, "an image that is not in the catalog", None, {}, source=source)
    else:
        image = catalog.require(name)
    group = next((group for group in gpus.groups if image in group.images), None)
    same = [group for group in gpus.groups if image.vendor in (None, group.gpus[0].vendor)]
    if group is None and same and image.vendor != CPU:
        group = max(same, key=lambda group: group.rank)
    found = problems(image, group.gpus if group else (), catalog, host)
    if use == "never":  # an image for GPUs computes on the processor too
        group, found = None, processor_problems(image, host)
    if found and not inputs.request.force:
        raise refusals.misfit(name, found, gpus, for_processors(catalog, host))
    if group is None and use == "required":
        evidence = f"image {name}" if image.vendor == CPU else refusals.no_gpu(gpus, host)
        remedy = "name an image for the GPUs, or leave --device and --gpus out"
        raise Unavailable("A GPU is requested and none can be used", evidence, remedy)
    place, engine = _place(image, engines, inputs.built, host)
    if place is None or engine is None:
        raise refusals.not_runnable(image, engines, None, settings, host)
    why = f"{REQUESTED}, although {'; '.join(found)}" if found else REQUESTED
    group = None if image.vendor == CPU else group
    return _contained(inputs, gpus, engine, image, place, group, why, source, tuple(found))


def _native(
    inputs: LaunchInputs,
    gpus: GpuSurvey,
    source: str,
    why: str,
    served: GpuGroup | None = None,
) -> Choice:
    """Return the choice of the native environment; `served` are GPUs that an image would serve."""
    native, use = inputs.native, inputs.gpu_use
    if native.absent:
        raise Unavailable(
            "The libraries of the model are not installed",
            f"{native.python} has no {', '.join(native.absent)}",
            f"install them with `{native.install}`",
        )
    same = [group for group in gpus.groups if group.selection.vendor == native.vendor]
    usable = [] if use == "never" else same
    group = max(usable, key=lambda group: group.rank[1:], default=None)
    if group is None and use != "never":
        if gpus.groups:
            idle = ", ".join(counted(group.gpus) for group in gpus.groups)
            evidence = f"PyTorch {native.torch} in {native.python} cannot use {idle}"
            remedy = "install a PyTorch that can"
            if served:
                remedy = f"build an image with `aam-launch images build {served.images[0].name}`"
            remedy += ", or add --device cpu to compute on the processor"
            raise Unavailable("The GPUs would stay idle", evidence, remedy)
        refusals.require_served(gpus, inputs.host, use)
    decisions = [*gpus.decisions, Decision("engine", NATIVE, why, source)]
    decisions += left_out(gpus.groups, group, f"PyTorch {native.torch}")
    findings = (*gpus.findings, *gpus.undriven)
    return Choice(NATIVE, None, None, *_used(group), tuple(decisions), findings)


def _contained(
    inputs: LaunchInputs,
    gpus: GpuSurvey,
    engine: str,
    image: Image,
    built: BuiltImage,
    group: GpuGroup | None,
    why: str,
    source: str,
    forced: tuple[str, ...] = (),
) -> Choice:
    """Return the choice of an image."""
    findings = [*gpus.findings, *gpus.undriven]
    if group and image.attention and not fast(image, group.arch):
        evidence = f"{image.name} has no fused attention kernels for {group.arch}"
        findings.append(Finding("note", "Attention takes the math path", evidence))
    decisions = [*gpus.decisions, Decision("image", image.name, why, source)]
    fact = inputs.host.engine(engine)
    if inputs.settings.text("runtime") != "auto":
        source = inputs.settings.source("runtime")
        decisions.append(Decision("engine", engine, REQUESTED, source))
    else:
        why = f"{fact.path}, and the image is there for it" if fact else "assumed for a capture"
        decisions.append(Decision("engine", engine, why, "host"))
    decisions += left_out(gpus.groups, group, image.name)
    return Choice(engine, image, built, *_used(group), tuple(decisions), tuple(findings), forced)


def _used(group: GpuGroup | None) -> tuple[tuple[Gpu, ...], DeviceSelection | None]:
    return (group.gpus, group.selection) if group else ((), None)


def _why(inputs: LaunchInputs, gpus: GpuSurvey, image: Image, group: GpuGroup | None) -> str:
    if group is None and inputs.gpu_use == "never":
        return "the command computes on the processor"
    if group is None:
        return refusals.no_gpu(gpus, inputs.host)
    why = f"{counted(group.gpus)} are in its PyTorch's list"
    preference = image.prefer.get(group.arch)
    if preference:
        why = f"{len(group.gpus)} x {group.gpus[0].product}: {preference}"
    vendor = group.selection.vendor
    driver = inputs.host.driver(vendor)
    if driver is None:
        return why
    ranges = inputs.catalog.drivers.get(vendor, ())
    return f"{why}; {VENDORS[vendor].driver_text(driver, ranges)}"
