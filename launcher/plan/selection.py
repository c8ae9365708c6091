"""Selection of GPUs, image and engine, with the reason of each. Pure.

An image fits when it is built for the processor and for the vendor of the GPUs, its PyTorch was
compiled for their arch, and their kernel driver supports its user space (an unknown driver is no
obstacle). Of the images that fit, one that is built comes before one that is not, then the
catalog's preference for the arch, then its order. GPUs that no image serves are never passed over
in silence: the processor is used only if there is no GPU to use, or if the user chose it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aam.contract.errors import Unavailable, UsageError
from aam.contract.suggestions import nearest
from launcher.findings import Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Host
from launcher.plan.catalog import CPU, Catalog, Image
from launcher.plan.choice import NATIVE, BuiltImage, Choice, NativeStack
from launcher.plan.decision import Decision
from launcher.plan.gpu_groups import GpuGroup, GpuSurvey, best, counted, left_out, survey
from launcher.plan.gpu_use import GpuUse
from launcher.plan.image_fit import fast, for_processors, problems, processor_problems
from launcher.plan.refusals import (
    lacks_cdi,
    misfit,
    no_gpu,
    nothing,
    require_served,
    wrong_processor,
)
from launcher.plan.settings import LaunchSettings


def choose(
    host: Host,
    catalog: Catalog,
    settings: LaunchSettings,
    built: Sequence[BuiltImage],
    native: NativeStack,
    force: bool = False,
    use: GpuUse = "automatic",
) -> Choice:
    """Decide which GPUs, image and engine to use.

    Args:
        host: facts.
        catalog: images, with those of the configuration.
        settings: what was asked for.
        built: images that are there; for a capture of another host None is known to be there, so
            the caller passes all of them.
        native: the environment of the launcher.
        force: use the image asked for even if it does not fit.
        use: whether the command needs a GPU, takes one where there is one, or computes without.

    Raises:
        Unavailable: no image fits or serves the GPUs, none is built and native is impossible, or
            a GPU is required and none can be used.
        UsageError: an unknown image, or GPUs of two vendors between which nothing decides.
        ConfigurationError: variables that name no GPU or contradict each other.
    """
    gpus = survey(host, catalog, {found.image for found in built})
    runtime = settings.text("runtime")
    if runtime == NATIVE:
        return _native(gpus, native, host, use, settings.source("runtime"), "asked for")
    engines = _engines(host, runtime)
    name = settings.text("image")
    if name != "auto":
        return _named(name, settings, catalog, host, gpus, engines, built, force, use)
    group = best(gpus.groups) if use != "never" else None
    if group is None and use != "never":
        vendors = {unserved.gpus[0].vendor for unserved in gpus.groups}
        if host.live and runtime == "auto" and not native.absent and native.vendor in vendors:
            why = f"no image serves the GPUs, and PyTorch {native.torch} is installed here"
            return _native(gpus, native, host, use, "host", why)
        require_served(gpus, host, use)
    candidates = group.images if group else for_processors(catalog, host)
    if use == "never":  # an image for GPUs computes on the processor too
        candidates += tuple(image for one in gpus.groups for image in one.images)
    for image in candidates:
        place, engine = _place(image, engines, built, host)
        if place and engine:
            others = [other for other in candidates if other is not image]
            why = _why(image, group, catalog, host, gpus, use)
            if others and others[0] in candidates[: candidates.index(image)]:
                why += f"; {others[0].name} would come before it but is not built"
            decisions = [
                Decision("image", image.name, why, image.source),
                _engine_decision(engine, runtime, settings, host),
            ]
            return _choice(engine, image, place, group, gpus, decisions)
    # The environment of this process is not that of a captured host.
    if runtime != "auto" or native.absent or not host.live:
        if not candidates:
            raise wrong_processor(catalog, host, native.install)
        raise nothing(candidates, engines, native.install, settings, host)
    first = candidates[0].name if candidates else None
    why = f"no image is built ({first} would suit), and PyTorch {native.torch} is installed here"
    if first is None:
        why = f"no image is built for {host.machine}, and PyTorch {native.torch} is installed here"
    elif not engines:
        why = f"there is no engine that can start a container, and PyTorch {native.torch} is here"
    return _native(gpus, native, host, use, "host", why, group)


def _engines(host: Host, runtime: str) -> tuple[str, ...]:
    """Return the engines to try.

    Raises:
        Unavailable: the one asked for is not there or cannot start a container.
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
        if host.traits(engine).needs_cdi and lacks_cdi(image, host):
            continue
        for found in built:
            if found.image == image.name and engine in found.engines:
                return found, engine
    return None, None


def _named(
    name: str,
    settings: LaunchSettings,
    catalog: Catalog,
    host: Host,
    gpus: GpuSurvey,
    engines: tuple[str, ...],
    built: Sequence[BuiltImage],
    force: bool,
    use: GpuUse,
) -> Choice:
    """Return the choice of the requested image, if it fits."""
    image, source = catalog.image(name), settings.source("image")
    if image is None and not any(found.image == name for found in built):
        known = [known.name for known in catalog.images]
        raise UsageError(
            "No such image", f"'{name}'", nearest(name, known, f"known are {', '.join(known)}")
        )
    if image is None:
        image = Image(name, "an image that the catalog does not know", None, {}, source=source)
    group = next((k for k in gpus.groups if image in k.images), None)
    same = [k for k in gpus.groups if image.vendor in (None, k.gpus[0].vendor)]
    if group is None and same and image.vendor != CPU:
        group = max(same, key=lambda k: k.rank)
    found = problems(image, group.gpus if group else (), catalog, host)
    if use == "never":  # an image for GPUs computes on the processor too
        group, found = None, processor_problems(image, host)
    if found and not force:
        raise misfit(name, found, gpus, for_processors(catalog, host))
    if group is None and use == "required":
        evidence = f"image {name}" if image.vendor == CPU else no_gpu(gpus, host)
        remedy = "name an image for the GPUs, or leave --device and --gpus out"
        raise Unavailable("A GPU is requested and none can be used", evidence, remedy)
    why = f"asked for, although {'; '.join(found)}" if found else "asked for"
    place, engine = _place(image, engines, built, host)
    if place is None or engine is None:
        raise nothing((image,), engines, None, settings, host)
    decisions = [
        Decision("image", name, why, source),
        _engine_decision(engine, settings.text("runtime"), settings, host),
    ]
    group = None if image.vendor == CPU else group
    return _choice(engine, image, place, group, gpus, decisions, tuple(found))


def _native(
    gpus: GpuSurvey,
    native: NativeStack,
    host: Host,
    use: GpuUse,
    source: str,
    why: str,
    served: GpuGroup | None = None,
) -> Choice:
    """Return the choice of the native environment; `served` are GPUs that an image would serve."""
    if native.absent:
        raise Unavailable(
            "The libraries of the model are not installed",
            f"{native.python} has no {', '.join(native.absent)}",
            f"install them with `{native.install}`",
        )
    usable = [group for group in gpus.groups if group.gpus[0].vendor == native.vendor]
    group = max(usable, key=lambda k: k.rank[1:], default=None) if use != "never" else None
    if group is None and use != "never":
        if gpus.groups:
            idle = ", ".join(counted(group.gpus) for group in gpus.groups)
            evidence = f"PyTorch {native.torch} in {native.python} cannot use {idle}"
            remedy = "install a PyTorch that can"
            if served:
                remedy = f"build an image with `aam-launch images build {served.images[0].name}`"
            remedy += ", or add --device cpu to compute on the processor"
            raise Unavailable("The GPUs would stay idle", evidence, remedy)
        require_served(gpus, host, use)
    decisions = [*gpus.decisions, Decision("engine", NATIVE, why, source)]
    decisions += left_out(gpus.groups, group, f"PyTorch {native.torch}")
    return Choice(
        engine=NATIVE,
        image=None,
        built=None,
        gpus=group.gpus if group else (),
        selection=group.selection if group else None,
        decisions=tuple(decisions),
        findings=(*gpus.findings, *gpus.undriven),
    )


def _choice(
    engine: str,
    image: Image,
    built: BuiltImage,
    group: GpuGroup | None,
    gpus: GpuSurvey,
    decisions: Sequence[Decision],
    forced: tuple[str, ...] = (),
) -> Choice:
    findings = [*gpus.findings, *gpus.undriven]
    if group and image.attention and not fast(image, group.arch):
        evidence = f"{image.name} has no fused attention kernels for {group.arch}"
        findings.append(Finding("note", "Attention takes the math path", evidence, ""))
    return Choice(
        engine=engine,
        image=image,
        built=built,
        gpus=group.gpus if group else (),
        selection=group.selection if group else None,
        decisions=(*gpus.decisions, *decisions, *left_out(gpus.groups, group, image.name)),
        findings=tuple(findings),
        forced=forced,
    )


def _why(
    image: Image, group: GpuGroup | None, catalog: Catalog, host: Host, gpus: GpuSurvey, use: GpuUse
) -> str:
    if group is None:
        return "the command computes on the processor" if use == "never" else no_gpu(gpus, host)
    arch = group.arch
    why = f"{counted(group.gpus)} are in its PyTorch's list"
    preference = dict(image.prefer).get(arch)
    if preference:
        why = f"{len(group.gpus)} x {group.gpus[0].product}: {preference}"
    vendor = group.selection.vendor
    driver = host.driver(vendor)
    if driver is None:
        return why
    return f"{why}; {VENDORS[vendor].driver_text(driver, catalog.drivers.get(vendor, ()))}"


def _engine_decision(engine: str, runtime: str, settings: LaunchSettings, host: Host) -> Decision:
    if runtime != "auto":
        return Decision("engine", engine, "asked for", settings.source("runtime"))
    fact = host.engine(engine)
    why = f"{fact.path}, and the image is there for it" if fact else "assumed for a capture"
    return Decision("engine", engine, why, "host")
