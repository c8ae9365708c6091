"""Choose: which GPUs, which image, which engine. Pure; every choice says why.

An image fits when it is of the GPUs' vendor, its torch was compiled for their arch and its user
space is one that their kernel driver was tested with (an unknown driver is no obstacle). Of the
images that fit, one that is built comes before one that is not, then the catalog's preference for
the arch, then its order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from aam.options.frozen import dataclass
from launcher.errors import Unavailable, UsageError
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image
from launcher.plan.decision import Decision, Finding
from launcher.plan.fit import fast, problems
from launcher.plan.kinds import Kind, best, kinds_of, left_out
from launcher.plan.layers import Settings
from launcher.plan.masks import Selection
from launcher.plan.nothing import nothing
from launcher.plan.spelling import nearest

SIF_ENGINES = ("apptainer", "singularity")
OCI_ENGINES = ("podman", "docker")
NATIVE = "native"


@dataclass(frozen=True)
class Built:
    """An image that is there: for SIF engines a file, for podman or docker a reference.

    Attributes:
        image: its name.
        engines: those that can run it there.
        place: the file, the id or the reference.
        digest: "sha256:..." as it was recorded when it was built; of a SIF without a record
            "sif:...", the id that the build gave it.
        labels: what was measured in it then.
        doubt: what is wrong with its record, and the remedy; a job does not use it then.
    """

    image: str
    engines: tuple[str, ...]
    place: str
    digest: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    doubt: tuple[str, str] | None = None


@dataclass(frozen=True)
class Native:
    """The environment that the launcher runs in, as a stack.

    Attributes:
        python: absolute path of its interpreter.
        absent: libraries of the model that it lacks.
        in_user_site: `aam` itself is installed in the user's site folder.
        torch: version of PyTorch ("2.13.0+cpu"), or None.
        vendor: whose GPUs that PyTorch can use: "amd", "nvidia" or "cpu".
    """

    python: str
    absent: tuple[str, ...]
    in_user_site: bool
    torch: str | None
    vendor: str


@dataclass(frozen=True)
class Choice:
    """The outcome: what runs where.

    Attributes:
        engine: "apptainer", ..., "native".
        image: None for native.
        built: the image's place; None for native, or if it is not built (explanations only).
        gpus: the GPUs of one kind that are used; empty on a processor.
        selection: what the masks left of their vendor's GPUs, or None.
        forced: problems that --force overrode.
    """

    engine: str
    image: Image | None
    built: Built | None
    gpus: tuple[Gpu, ...]
    selection: Selection | None
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    forced: tuple[str, ...] = ()


def choose(
    host: Host,
    catalog: Catalog,
    settings: Settings,
    built: Sequence[Built],
    native: Native,
    force: bool = False,
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

    Raises:
        Unavailable: no image fits, or none is built and native is impossible.
        UsageError: an unknown image, or GPUs of two vendors between which nothing decides.
        ConfigurationError: masks that make no sense.
    """
    kinds, decisions, findings = kinds_of(host, catalog, {found.image for found in built})
    runtime = settings.text("runtime")
    if runtime == NATIVE:
        return _native(kinds, native, decisions, findings, settings.source("runtime"), "asked for")
    engines = _engines(host, runtime)
    name = settings.text("image")
    if name != "auto":
        return _named(name, settings, catalog, host, kinds, engines, built, force,
                      decisions, findings)  # fmt: skip
    kind = best(kinds)
    candidates = kind.images if kind else tuple(i for i in catalog.images if i.vendor == CPU)
    for image in candidates:
        place, engine = _place(image, engines, built, host)
        if place and engine:
            others = [other for other in candidates if other is not image]
            why = _why(image, kind, catalog, host)
            if others and others[0] in candidates[: candidates.index(image)]:
                why += f"; {others[0].name} would come before it but is not built"
            decisions.append(Decision("image", image.name, why, image.source))
            decisions.append(_engine_decision(engine, runtime, settings, host))
            decisions += left_out(kinds, kind, image.name)
            return _choice(engine, image, place, kind, decisions, findings)
    if runtime != "auto" or native.absent:
        raise nothing(candidates, engines, native.python, settings, host)
    first = candidates[0].name if candidates else CPU
    why = f"no image is built ({first} would suit), and PyTorch {native.torch} is installed here"
    if not engines:
        why = f"there is no engine that can start a container, and PyTorch {native.torch} is here"
    return _native(kinds, native, decisions, findings, "host", why)


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
    image: Image, engines: Sequence[str], built: Sequence[Built], host: Host
) -> tuple[Built | None, str | None]:
    """Return where the image is and the first engine that can run it there."""
    for engine in engines or (() if host.live else SIF_ENGINES[:1]):
        if engine == "podman" and image.vendor == "nvidia" and not host.cdi:
            continue
        for found in built:
            if found.image == image.name and engine in found.engines:
                return found, engine
    return None, None


def _named(
    name: str,
    settings: Settings,
    catalog: Catalog,
    host: Host,
    kinds: Sequence[Kind],
    engines: tuple[str, ...],
    built: Sequence[Built],
    force: bool,
    decisions: list[Decision],
    findings: list[Finding],
) -> Choice:
    """Take the image asked for, if it fits."""
    image, source = catalog.image(name), settings.source("image")
    if image is None and not any(found.image == name for found in built):
        known = [known.name for known in catalog.images]
        raise UsageError(
            "No such image", f"'{name}'", nearest(name, known, f"known are {', '.join(known)}")
        )
    if image is None:
        image = Image(name, "an image that the catalog does not know", None, {}, source=source)
    kind = next((k for k in kinds if image in k.images), None)
    same = [k for k in kinds if image.vendor is None or k.gpus[0].vendor == image.vendor]
    if kind is None and same and image.vendor != CPU:
        kind = max(same, key=lambda k: k.rank)
    found = problems(image, kind.gpus if kind else (), catalog, host)
    if found and not force:
        fitting = best(kinds)
        near = fitting.images[0].name if fitting else CPU
        remedy = f"the nearest fit is --image {near}; --force runs it anyway"
        raise Unavailable(f"Image {name} does not fit this host", "; ".join(found), remedy)
    forced = tuple(found)
    why = f"asked for, although {'; '.join(found)}" if found else "asked for"
    decisions.append(Decision("image", name, why, source))
    place, engine = _place(image, engines, built, host)
    if place is None or engine is None:
        raise nothing((image,), engines, None, settings, host)
    decisions.append(_engine_decision(engine, settings.text("runtime"), settings, host))
    kind = None if image.vendor == CPU else kind
    decisions += left_out(kinds, kind, name)
    return _choice(engine, image, place, kind, decisions, findings, forced)


def _native(
    kinds: Sequence[Kind],
    native: Native,
    decisions: list[Decision],
    findings: list[Finding],
    source: str,
    why: str,
) -> Choice:
    if native.absent:
        raise Unavailable(
            "The libraries of the model are not installed",
            f"{native.python} has no {', '.join(native.absent)}",
            f"install them with `{native.python} -m pip install 'aam[model]'`",
        )
    decisions.append(Decision("engine", NATIVE, why, source))
    usable = [kind for kind in kinds if kind.gpus[0].vendor == native.vendor]
    if kinds and not usable:
        gpus = ", ".join(f"{len(kind.gpus)} x {kind.gpus[0].product}" for kind in kinds)
        evidence = f"PyTorch {native.torch} in {native.python} cannot use {gpus}"
        remedy = "build an image, or install a PyTorch that can"
        findings.append(Finding("warning", "The GPUs stay idle", evidence, remedy))
    kind = max(usable, key=lambda k: k.rank[1:], default=None)
    decisions += left_out(kinds, kind, f"PyTorch {native.torch}") if kind else []
    return Choice(
        engine=NATIVE,
        image=None,
        built=None,
        gpus=kind.gpus if kind else (),
        selection=kind.selection if kind else None,
        decisions=tuple(decisions),
        findings=tuple(findings),
    )


def _choice(
    engine: str,
    image: Image,
    built: Built,
    kind: Kind | None,
    decisions: list[Decision],
    findings: list[Finding],
    forced: tuple[str, ...] = (),
) -> Choice:
    gpus = kind.gpus if kind else ()
    if kind and gpus and image.attention and not fast(image, kind.arch):
        evidence = f"{image.name} has no fused attention kernels for {kind.arch}"
        findings.append(Finding("note", "Attention takes the math path", evidence, ""))
    return Choice(
        engine, image, built, gpus, kind.selection if kind else None,
        tuple(decisions), tuple(findings), forced,
    )  # fmt: skip


def _why(image: Image, kind: Kind | None, catalog: Catalog, host: Host) -> str:
    if kind is None:
        if any(not gpu.driven for gpu in host.gpus):
            return "there are GPUs but no driver is loaded for them"
        if any(gpu.integrated for gpu in host.gpus):
            return "the only GPU is an integrated one, which no stack computes on"
        return (
            "no image serves the GPUs" if any(g.readable for g in host.gpus) else "there is no GPU"
        )
    arch, gpus = kind.arch, kind.gpus
    why = f"{len(gpus)} x {gpus[0].product} ({arch}) are in its PyTorch's list"
    preference = dict(image.prefer).get(arch)
    if preference:
        why = f"{len(gpus)} x {gpus[0].product}: {preference}"
    driver = host.driver(gpus[0].vendor)
    known = catalog.range_of(driver.version) if driver and driver.version else None
    if known and gpus[0].vendor == "amd" and driver:
        doubt = "" if known.confirmed else " by AMD's rules, unconfirmed"
        tested = f"was tested with ROCm {', '.join(known.serves)}{doubt}"
        return f"{why}; driver {driver.version} {tested}"
    if driver and driver.version:
        return f"{why}; driver {driver.version}"
    return f"{why}; the driver's tested range is unknown"


def _engine_decision(engine: str, runtime: str, settings: Settings, host: Host) -> Decision:
    if runtime != "auto":
        return Decision("engine", engine, "asked for", settings.source("runtime"))
    fact = host.engine(engine)
    why = f"{fact.path}, and the image is there for it" if fact else "assumed for a capture"
    return Decision("engine", engine, why, "host")
