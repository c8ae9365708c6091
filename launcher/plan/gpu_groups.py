"""Groups of alike GPUs of a host, the images that serve each, and the best group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aam.contract.errors import AamError, UsageError
from launcher.findings import Decision, Finding
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import Catalog, Image, StackFault
from launcher.plan.image_fit import driver_problem, fast, for_processors, problems, served
from launcher.plan.visible_devices import DeviceSelection, select


@dataclass(frozen=True)
class GpuGroup:
    """GPUs of one arch of one vendor, partitioned or not, and the fitting images, best first."""

    selection: DeviceSelection
    gpus: tuple[Gpu, ...]
    images: tuple[Image, ...]

    @property
    def arch(self) -> str:
        """The arch, or "unknown"."""
        return self.gpus[0].arch or "unknown"

    @property
    def fast(self) -> bool:
        """The best image has fused attention kernels for it."""
        return bool(self.images) and fast(self.images[0], self.arch)

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Sort key: fused attention, unpartitioned cards, number of GPUs."""
        return self.fast, not self.gpus[0].instances, len(self.gpus)


@dataclass(frozen=True)
class GpuSurvey:
    """The GPUs of a host, sorted.

    Attributes:
        groups: the selected GPUs by vendor and arch, each with the images that fit.
        selections: the visible devices of each vendor.
        findings: remarks about GPUs and drivers, whatever is chosen.
        unserved: for each group that no image fits, the reason.
        undriven: the GPUs without a driver.
    """

    groups: tuple[GpuGroup, ...] = ()
    selections: tuple[DeviceSelection, ...] = ()
    findings: tuple[Finding, ...] = ()
    unserved: tuple[Finding, ...] = ()
    undriven: tuple[Finding, ...] = ()

    @property
    def decisions(self) -> list[Decision]:
        """The visible devices of each vendor, as decisions."""
        return [
            Decision(f"{s.vendor} GPUs", s.summary, "what jobs and variables leave", s.source)
            for s in self.selections
        ]

    @property
    def obstacles(self) -> tuple[Finding, ...]:
        """The reasons why GPUs of this host cannot be used by any image."""
        return (*self.unserved, *self.undriven)


def survey(host: Host, catalog: Catalog, available: Container[str]) -> GpuSurvey:
    """Sort the GPUs that may be used by vendor and arch; images that are `available` come first."""
    groups: list[GpuGroup] = []
    selections: list[DeviceSelection] = []
    unserved: list[Finding] = []
    findings = _remarks(host)
    for vendor, known in VENDORS.items():
        gpus = [gpu for gpu in host.gpus if gpu.vendor == vendor]
        if not any(gpu.driven for gpu in gpus):
            continue
        driver = host.driver(vendor)
        mismatch = known.driver_warning(driver, catalog.drivers.get(vendor, ())) if driver else None
        findings += [mismatch] if mismatch else []
        selection = select(vendor, gpus, host.environment, host.slurm)
        selections.append(selection)
        by_group: dict[tuple[str | None, bool], list[Gpu]] = {}
        for gpu in selection.gpus:
            if not gpu.integrated:
                by_group.setdefault((gpu.arch, bool(gpu.instances)), []).append(gpu)
        for (arch, cut), same in by_group.items():
            same = same[:1] if cut else same
            fitting = [i for i in catalog.images if i.vendor == vendor
                       and not problems(i, same, catalog, host)]  # fmt: skip
            faults = {i.name: catalog.unmeasured_fault(i, arch) for i in fitting}
            fitting.sort(
                key=lambda i: (i.name not in available, bool(faults[i.name]), arch not in i.prefer)
            )
            groups.append(GpuGroup(selection, tuple(same), tuple(fitting)))
            unserved += [] if fitting else [_unserved(vendor, same, catalog, host)]
            findings += _newer(same, fitting, catalog, host)
            findings += _failed(arch, catalog) if fitting and arch else []
            findings += _faulty(same, faults)
    return GpuSurvey(
        tuple(groups), tuple(selections), tuple(findings), tuple(unserved), tuple(_undriven(host))
    )


def _unserved(vendor: str, gpus: Sequence[Gpu], catalog: Catalog, host: Host) -> Finding:
    """Return the reason why no image serves GPUs, by the example of the least demanding one.

    That is the oldest image whose PyTorch is compiled for them, or the oldest of all.
    """
    own = [image for image in catalog.images if image.vendor == vendor]
    compiled = [image for image in own if served(image, gpus[0].arch or "unknown")]
    why = f"the catalog has no image for GPUs of {VENDORS[vendor].title}"
    if own:
        oldest = (compiled or own)[-1]
        why = f"{oldest.name}: {'; '.join(problems(oldest, gpus, catalog, host))}"
    return Finding("warning", "No image serves these GPUs", f"{counted(gpus)}; {why}", "")


def _newer(
    gpus: Sequence[Gpu], fitting: Sequence[Image], catalog: Catalog, host: Host
) -> list[Finding]:
    """Return a note on the newest image that only the kernel driver keeps from serving GPUs."""
    for image in catalog.images if fitting else ():
        if image in fitting:
            break
        reason = driver_problem(image, catalog, host)
        if reason and problems(image, gpus, catalog, host) == [reason]:
            evidence = f"{image.name} ({image.title}) for {counted(gpus)}: {reason}"
            cause = "A newer kernel driver would serve a newer image"
            return [Finding("note", cause, evidence, "")]
    return []


def _failed(arch: str, catalog: Catalog) -> Iterator[Finding]:
    """Return a warning for each image that `aam check` keeps from being chosen for an arch."""
    for image in catalog.images:
        if arch in image.failed:
            cause = "A stack is not chosen, because aam check failed with it"
            evidence = f"{image.name} on {arch}: {image.failed[arch]}"
            yield Finding("warning", cause, evidence, "--recheck measures it again")


def _faulty(gpus: Sequence[Gpu], faults: Mapping[str, StackFault | None]) -> Iterator[Finding]:
    """Return a note for each image that a reported fault ranks below those without."""
    for name, fault in faults.items():
        if fault is not None and not all(faults.values()):
            evidence = f"{name} for {counted(gpus)}: {fault.reason} ({fault.source})"
            remedy = f"`--image {name}` measures whether it occurs here"
            yield Finding("note", "A reported fault ranks a stack below others", evidence, remedy)


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
            remedy = "nothing to do; no image computes on it"
            findings.append(Finding("note", "An integrated GPU is not used", place, remedy))
        elif gpu.driven and gpu.readable and gpu.arch is None and not gpu.obstacle:
            cause, evidence = "A GPU of unknown architecture", f"{place} is in no table"
            remedy = "report it, so that the table can have it"
            findings.append(Finding("warning", cause, evidence, remedy))
    return findings


def best(groups: Sequence[GpuGroup], option: str = "--image") -> GpuGroup | None:
    """Return the group to use, by its rank; None if none is served.

    Raises:
        UsageError: groups of two vendors rank alike; `option` chooses between them.
    """
    usable = [group for group in groups if group.images]
    ranked = sorted(usable, key=lambda group: group.rank, reverse=True)
    if not ranked:
        return None
    rivals = [k for k in ranked[1:] if k.gpus[0].vendor != ranked[0].gpus[0].vendor]
    if rivals and rivals[0].fast == ranked[0].fast:
        names = " and ".join(f"{len(k.gpus)} x {k.gpus[0].product}" for k in (ranked[0], rivals[0]))
        suits = " or ".join(k.images[0].name for k in (ranked[0], rivals[0]))
        raise UsageError("Two vendors, equally supported", names, f"choose with {option} {suits}")
    return ranked[0]


def left_out(groups: Sequence[GpuGroup], used: GpuGroup | None, runs: str) -> list[Decision]:
    """Return the GPUs that stay unused: those of other groups, and further cards that are cut."""
    decisions = []
    for group in groups:
        if group is not used:
            why = f"{runs} computes on the processor"
            if used:
                why = f"one group of alike GPUs at a time, and {runs} runs on {counted(used.gpus)}"
            decisions.append(Decision("left out", counted(group.gpus), why, "host"))
    if used and used.gpus[0].instances:
        cut = [gpu for gpu in used.selection.gpus if gpu.instances and gpu not in used.gpus]
        why = VENDORS[used.selection.vendor].one_instance
        decisions += [Decision("left out", counted(cut), why, "host")] if cut else []
    return decisions


def counted(gpus: Sequence[Gpu]) -> str:
    """Return number, product and arch of alike GPUs, such as "4 x MI300A (gfx942)"."""
    first = gpus[0]
    name = VENDORS[first.vendor].instance.rstrip("-")
    cut = f", cut by {name}" if first.instances else ""
    return f"{len(gpus)} x {first.product} ({first.arch or 'arch unknown'}{cut})"


def fitting_images(host: Host, catalog: Catalog) -> tuple[Image, ...]:
    """Return the images that fit this host, best first; the CPU image always does."""
    try:
        groups = survey(host, catalog, ()).groups
    except AamError:
        groups = ()
    served = [image for group in groups for image in group.images]
    served += for_processors(catalog, host)
    return tuple({image.name: image for image in served}.values())
