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

from aam.contract.errors import Unavailable, UsageError
from aam.contract.suggestions import nearest
from launcher.findings import Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Host
from launcher.plan import refusals
from launcher.plan.catalog import CPU, Catalog, Image
from launcher.plan.choice import NATIVE, BuiltImage, Choice, NativeStack
from launcher.plan.decision import REQUESTED, Decision
from launcher.plan.gpu_groups import GpuGroup, GpuSurvey, best, counted, left_out, survey
from launcher.plan.gpu_use import GpuUse
from launcher.plan.image_fit import fast, for_processors, problems, processor_problems
from launcher.plan.settings import LaunchSettings
from launcher.plan.visible_devices import DeviceSelection


@dataclass(frozen=True)
class _Inputs:
    """What a selection is made from; see `choose`."""

    host: Host
    catalog: Catalog
    settings: LaunchSettings
    built: Sequence[BuiltImage]
    native: NativeStack
    use: GpuUse
    gpus: GpuSurvey

    @property
    def native_possible(self) -> bool:
        """Whether `--runtime auto` may take the native stack; a capture has another environment."""
        automatic = self.settings.text("runtime") == "auto"
        return automatic and not self.native.absent and self.host.live


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
        catalog: images, with those of the configuration.
        settings: the requests of the user and of configurations.
        built: images that are built; for a captured host, all images.
        force: use the requested image even if it does not fit.
        use: whether the command needs a GPU, takes one where there is one, or computes without.

    Raises:
        Unavailable: no image fits or serves the GPUs, none is built and native is impossible, or
            a GPU is required and none can be used.
        UsageError: an unknown image, or GPUs of two vendors between which nothing decides.
        ConfigurationError: variables that name no GPU or contradict each other.
    """
    gpus = survey(host, catalog, {found.image for found in built})
    given = _Inputs(host, catalog, settings, built, native, use, gpus)
    if settings.text("runtime") == NATIVE:
        return _native(given, settings.source("runtime"), REQUESTED)
    engines = _engines(host, settings.text("runtime"))
    if settings.text("image") != "auto":
        return _named(given, engines, force)
    return _automatic(given, engines)


def _automatic(given: _Inputs, engines: tuple[str, ...]) -> Choice:
    """Return the choice of the best image that fits and is built, or of the native stack."""
    host, catalog, gpus, native = given.host, given.catalog, given.gpus, given.native
    group = best(gpus.groups) if given.use != "never" else None
    here = f"PyTorch {native.torch} is"
    if group is None and given.use != "never":
        unserved = {group.gpus[0].vendor for group in gpus.groups}
        if given.native_possible and native.vendor in unserved:
            return _native(given, "host", f"no image serves the GPUs, and {here} installed here")
        refusals.require_served(gpus, host, given.use)
    candidates = group.images if group else for_processors(catalog, host)
    if given.use == "never":  # an image for GPUs computes on the processor too
        candidates += tuple(image for group in gpus.groups for image in group.images)
    for number, image in enumerate(candidates):
        place, engine = _place(image, engines, given.built, host)
        if place and engine:
            why = _why(image, group, given)
            if number:
                why += f"; {candidates[0].name} would come before it but is not built"
            return _contained(given, engine, image, place, group, why, image.source)
    if not given.native_possible:
        if not candidates:
            raise refusals.wrong_processor(catalog, host, native.install)
        raise refusals.not_runnable(candidates[0], engines, native.install, given.settings, host)
    if not candidates:
        why = f"no image is built for {host.machine}, and {here} installed here"
    elif not engines:
        why = f"there is no engine that can start a container, and {here} here"
    else:
        why = f"no image is built ({candidates[0].name} would suit), and {here} installed here"
    return _native(given, "host", why, group)


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


def _named(given: _Inputs, engines: tuple[str, ...], force: bool) -> Choice:
    """Return the choice of the requested image, if it fits."""
    host, catalog, gpus, never = given.host, given.catalog, given.gpus, given.use == "never"
    name, source = given.settings.text("image"), given.settings.source("image")
    image = catalog.image(name)
    if image is None and not any(found.image == name for found in given.built):
        known = [known.name for known in catalog.images]
        remedy = nearest(name, known, f"known are {', '.join(known)}")
        raise UsageError("No such image", f"'{name}'", remedy)
    if image is None:
        image = Image(name, "an image that is not in the catalog", None, {}, source=source)
    group = next((group for group in gpus.groups if image in group.images), None)
    same = [group for group in gpus.groups if image.vendor in (None, group.gpus[0].vendor)]
    if group is None and same and image.vendor != CPU:
        group = max(same, key=lambda group: group.rank)
    found = problems(image, group.gpus if group else (), catalog, host)
    if never:  # an image for GPUs computes on the processor too
        group, found = None, processor_problems(image, host)
    if found and not force:
        raise refusals.misfit(name, found, gpus, for_processors(catalog, host))
    if group is None and given.use == "required":
        evidence = f"image {name}" if image.vendor == CPU else refusals.no_gpu(gpus, host)
        remedy = "name an image for the GPUs, or leave --device and --gpus out"
        raise Unavailable("A GPU is requested and none can be used", evidence, remedy)
    place, engine = _place(image, engines, given.built, host)
    if place is None or engine is None:
        raise refusals.not_runnable(image, engines, None, given.settings, host)
    why = f"{REQUESTED}, although {'; '.join(found)}" if found else REQUESTED
    group = None if image.vendor == CPU else group
    return _contained(given, engine, image, place, group, why, source, tuple(found))


def _native(given: _Inputs, source: str, why: str, served: GpuGroup | None = None) -> Choice:
    """Return the choice of the native environment; `served` are GPUs that an image would serve."""
    native, gpus, uses_gpu = given.native, given.gpus, given.use != "never"
    if native.absent:
        raise Unavailable(
            "The libraries of the model are not installed",
            f"{native.python} has no {', '.join(native.absent)}",
            f"install them with `{native.install}`",
        )
    usable = [group for group in gpus.groups if uses_gpu and group.gpus[0].vendor == native.vendor]
    group = max(usable, key=lambda group: group.rank[1:], default=None)
    if group is None and uses_gpu:
        if gpus.groups:
            idle = ", ".join(counted(group.gpus) for group in gpus.groups)
            evidence = f"PyTorch {native.torch} in {native.python} cannot use {idle}"
            remedy = "install a PyTorch that can"
            if served:
                remedy = f"build an image with `aam-launch images build {served.images[0].name}`"
            remedy += ", or add --device cpu to compute on the processor"
            raise Unavailable("The GPUs would stay idle", evidence, remedy)
        refusals.require_served(gpus, given.host, given.use)
    decisions = [*gpus.decisions, Decision("engine", NATIVE, why, source)]
    decisions += left_out(gpus.groups, group, f"PyTorch {native.torch}")
    findings = (*gpus.findings, *gpus.undriven)
    return Choice(NATIVE, None, None, *_used(group), tuple(decisions), findings)


def _contained(
    given: _Inputs,
    engine: str,
    image: Image,
    built: BuiltImage,
    group: GpuGroup | None,
    why: str,
    source: str,
    forced: tuple[str, ...] = (),
) -> Choice:
    """Return the choice of an image."""
    gpus, settings = given.gpus, given.settings
    findings = [*gpus.findings, *gpus.undriven]
    if group and image.attention and not fast(image, group.arch):
        evidence = f"{image.name} has no fused attention kernels for {group.arch}"
        findings.append(Finding("note", "Attention takes the math path", evidence))
    decisions = [*gpus.decisions, Decision("image", image.name, why, source)]
    fact = given.host.engine(engine)
    if settings.text("runtime") != "auto":
        decisions.append(Decision("engine", engine, REQUESTED, settings.source("runtime")))
    else:
        why = f"{fact.path}, and the image is there for it" if fact else "assumed for a capture"
        decisions.append(Decision("engine", engine, why, "host"))
    decisions += left_out(gpus.groups, group, image.name)
    return Choice(engine, image, built, *_used(group), tuple(decisions), tuple(findings), forced)


def _used(group: GpuGroup | None) -> tuple[tuple[Gpu, ...], DeviceSelection | None]:
    return (group.gpus, group.selection) if group else ((), None)


def _why(image: Image, group: GpuGroup | None, given: _Inputs) -> str:
    if group is None and given.use == "never":
        return "the command computes on the processor"
    if group is None:
        return refusals.no_gpu(given.gpus, given.host)
    why = f"{counted(group.gpus)} are in its PyTorch's list"
    preference = dict(image.prefer).get(group.arch)
    if preference:
        why = f"{len(group.gpus)} x {group.gpus[0].product}: {preference}"
    vendor = group.selection.vendor
    driver = given.host.driver(vendor)
    if driver is None:
        return why
    ranges = given.catalog.drivers.get(vendor, ())
    return f"{why}; {VENDORS[vendor].driver_text(driver, ranges)}"
