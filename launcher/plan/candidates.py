"""Candidates of a launch: an engine, an image or the native environment, and a group of GPUs. Pure.

A group holds the GPUs of one architecture of one vendor, cut into partitions or not. `survey` sorts
the GPUs of a host into groups, `rules` has the reasons against a candidate, and `decision` orders
the candidates and takes the first without a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from aam.contract.errors import AamError, ConfigurationError, Unavailable
from launcher.findings import Decision, Finding
from launcher.gpus import VENDORS, unused
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image
from launcher.plan.inputs import BuiltImage
from launcher.plan.visible_devices import DeviceSelection, select

NATIVE = "native"


@dataclass(frozen=True)
class GpuGroup:
    """GPUs of one architecture of one vendor, and the visible devices of that vendor."""

    selection: DeviceSelection
    gpus: tuple[Gpu, ...]

    @property
    def vendor(self) -> str:
        """Name in `launcher.gpus.VENDORS`."""
        return self.selection.vendor

    @property
    def arch(self) -> str:
        """The architecture, or "unknown"."""
        return self.gpus[0].arch or "unknown"

    def __str__(self) -> str:
        """Return number, product and architecture, such as "4 x MI300A (gfx942)"."""
        return counted(self.gpus)


@dataclass(frozen=True)
class Candidate:
    """A way to run a command.

    Attributes:
        engine: name of a container engine, or NATIVE.
        image: None for the native environment.
        built: the image where this engine can run it; None if it is not built.
        group: the GPUs; None: the command computes on the processor.
    """

    engine: str
    image: Image | None = None
    built: BuiltImage | None = None
    group: GpuGroup | None = None

    @property
    def name(self) -> str:
        """The name of the image, or NATIVE."""
        return self.image.name if self.image else NATIVE


@dataclass(frozen=True)
class Reason:
    """A reason against a candidate, as an error states it: what happened, where, what to do."""

    cause: str
    evidence: str
    remedy: str = ""
    error: type[AamError] = Unavailable

    def __str__(self) -> str:
        """Return cause and evidence on one line."""
        return f"{self.cause}: {self.evidence}"

    @property
    def warning(self) -> Finding:
        """The reason as a warning."""
        return Finding("warning", self.cause, self.evidence, self.remedy)


@dataclass(frozen=True)
class GpuSurvey:
    """The GPUs of a host, sorted.

    Attributes:
        groups: the selected GPUs by vendor, architecture and partitioning; of each vendor those of
            the highest capability first.
        selections: the visible devices of each vendor.
        errors: variables that name no GPU of a vendor or contradict each other; such a vendor has
            no group.
        findings: remarks about GPUs and drivers, whatever is chosen.
        undriven: the GPUs without a driver.
        absent: the reason why no GPU is used where there is no group.
    """

    groups: tuple[GpuGroup, ...]
    selections: tuple[DeviceSelection, ...]
    errors: tuple[ConfigurationError, ...]
    findings: tuple[Finding, ...]
    undriven: tuple[Finding, ...]
    absent: str

    @property
    def decisions(self) -> list[Decision]:
        """The visible devices of each vendor, as decisions."""
        return [
            Decision(f"{s.vendor} GPUs", s.summary, "what jobs and variables leave", s.source)
            for s in self.selections
        ]


def survey(host: Host, catalog: Catalog) -> GpuSurvey:
    """Sort the GPUs that may be used by vendor, architecture and partitioning."""
    host = _with_integrated(host, catalog)
    groups: list[GpuGroup] = []
    selections: list[DeviceSelection] = []
    errors: list[ConfigurationError] = []
    findings = _remarks(host)
    for vendor, known in VENDORS.items():
        gpus = [gpu for gpu in host.gpus if gpu.vendor == vendor]
        if not any(gpu.driven for gpu in gpus):
            continue
        driver = host.driver(vendor)
        mismatch = known.driver_warning(driver, catalog.drivers.get(vendor, ())) if driver else None
        findings += [mismatch] if mismatch else []
        try:
            selection = select(vendor, host.gpus, host.environment, host.slurm)
        except ConfigurationError as error:
            errors.append(error)
            findings.append(Finding("warning", error.cause, error.evidence, error.remedy))
            continue
        selections.append(selection)
        if selection.remark:
            evidence, remedy = selection.remark
            findings.append(Finding("warning", "Numbers of unlike GPUs", evidence, remedy))
        alike: dict[tuple[str | None, bool], list[Gpu]] = {}
        for gpu in selection.gpus:
            if not gpu.integrated:
                alike.setdefault((gpu.arch, bool(gpu.instances)), []).append(gpu)
        by_capability = sorted(
            alike.items(), key=lambda item: known.capability(item[0][0] or ""), reverse=True
        )
        for (_, cut), same in by_capability:  # of partitioned cards one is used
            groups.append(GpuGroup(selection, tuple(same[:1] if cut else same)))
    absent = _absent(host, selections)
    if elsewhere := unused(host.bus):
        findings.append(Finding("warning", "GPUs are not used", elsewhere))
    return GpuSurvey(
        tuple(groups), tuple(selections), tuple(errors), tuple(findings),
        tuple(_undriven(host)), absent,
    )  # fmt: skip


def _with_integrated(host: Host, catalog: Catalog) -> Host:
    """Return the host with integrated GPUs counted as any other where an image has code for them.

    They are used only where no other GPU could be.
    """
    if any(gpu.driven and not gpu.integrated for gpu in host.gpus):
        return host
    return replace(host, gpus=tuple(
        replace(gpu, integrated=gpu.arch is None or not has_code(catalog, gpu.vendor, gpu.arch))
        if gpu.integrated else gpu for gpu in host.gpus
    ))  # fmt: skip


def _absent(host: Host, selections: Sequence[DeviceSelection]) -> str:
    for selection in selections:
        usable = [gpu for gpu in selection.ours if not gpu.integrated]
        if usable and not any(gpu in usable for gpu in selection.gpus):
            rest = "only an integrated one" if selection.gpus else "none"
            return f"{selection.source} leaves {rest} of the {len(selection.ours)} GPUs"
    if any(not gpu.driven and not gpu.integrated for gpu in host.gpus):
        return "there are GPUs but no driver is loaded for them"
    if any(gpu.driven and not gpu.readable for gpu in host.gpus):
        return "the GPUs of this host belong to other jobs"
    if any(gpu.integrated for gpu in host.gpus):
        return "the only GPU is an integrated one, which no image computes on"
    return unused(host.bus) or "there is no GPU"


def _undriven(host: Host) -> Iterator[Finding]:
    for vendor in VENDORS.values():
        idle = [gpu for gpu in host.gpus if gpu.vendor == vendor.name and not gpu.driven]
        for gpu in idle:
            if gpu.obstacle:
                place = f"{gpu.product} at {gpu.pci}: {gpu.obstacle}"
                remedy = "give it back to the host"
                yield Finding("warning", "A GPU cannot be used here", place, remedy)
        undriven = [gpu for gpu in idle if not gpu.integrated and not gpu.obstacle]
        if undriven:
            products = Counter(gpu.product for gpu in undriven)
            names = ", ".join(f"{count} x {product}" for product, count in products.items())
            evidence = f"{names} on the PCI bus, no {vendor.module} driver"
            remedy = f"load it (`modprobe {vendor.module}`) or install it"
            yield Finding("warning", "The GPU driver is not loaded", evidence, remedy)


def _remarks(host: Host) -> list[Finding]:
    """Return findings about GPUs of unknown architecture and integrated GPUs."""
    findings = []
    for gpu in host.gpus:
        place = f"{gpu.product} at {gpu.pci}"
        if gpu.integrated:
            remedy = "nothing to do; it is used only alone, if an image has code for it"
            findings.append(Finding("note", "An integrated GPU is not used", place, remedy))
        elif gpu.driven and gpu.readable and gpu.arch is None and not gpu.obstacle:
            cause, evidence = "A GPU of unknown architecture", f"{place} is in no table"
            remedy = "report it, so that the table can have it"
            findings.append(Finding("warning", cause, evidence, remedy))
    return findings


def counted(gpus: Sequence[Gpu]) -> str:
    """Return number, product and architecture of alike GPUs, such as "4 x MI300A (gfx942)"."""
    first = gpus[0]
    name = VENDORS[first.vendor].instance.rstrip("-")
    cut = f", cut by {name}" if first.instances else ""
    return f"{len(gpus)} x {first.product} ({first.arch or 'arch unknown'}{cut})"


def serves(image: Image, arch: str) -> bool:
    """Return whether the image's PyTorch runs on an architecture."""
    return image.vendor in VENDORS and VENDORS[image.vendor].serves(image.archs, arch)


def built_for(image: Image, machine: str) -> bool:
    """Return whether an image is built for a processor (`uname -m`), as far as it is known."""
    return not image.machines or machine in image.machines


def has_code(catalog: Catalog, vendor: str, arch: str) -> bool:
    """Return whether an image of the catalog for a vendor's GPUs runs on an architecture."""
    return any(image.vendor == vendor and serves(image, arch) for image in catalog.images)


def fused(image: Image, arch: str) -> bool:
    """Return whether the image has fused attention kernels for an architecture."""
    return image.vendor in VENDORS and VENDORS[image.vendor].fused(image.attention, arch)


def for_gpus(image: Image) -> bool:
    """Return whether an image is known to need a GPU of some vendor."""
    return image.vendor not in (CPU, None)
