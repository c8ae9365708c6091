"""Hardware of a launch: its GPUs in groups, and the images that fit each. Pure.

This is the first stage of the decision; `launcher.plan.decision` is the second. A group holds the
GPUs of one architecture of one vendor, cut into partitions or not. Order of the groups: fused
attention, whole cards, number of GPUs, compute capability. Order of the images of a group: those
without a reported fault, those that the catalog prefers for the architecture, the catalog's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from aam.contract.errors import AamError, ConfigurationError, Problem
from launcher.findings import Decision, as_warning, warning
from launcher.gpus import VENDORS, title, unused
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image, StackFault
from launcher.plan.inputs import NATIVE, BuiltImage, LaunchInputs
from launcher.plan.visible_devices import UNKNOWN, DeviceSelection, select

MISFITS = ("processor", "vendor", "device", "architecture", "driver")
"""Kinds of misfit of an image, in the order in which they are found; --force overrides them."""
Step = tuple[str, AamError]
"""A check of `launcher.plan.decision.STEPS`, and what it has against a candidate."""


class Candidate(msgspec.Struct, frozen=True):
    """A way to run a command: an image, or the native environment, with a group of GPUs."""

    image: Image | None = None  # None for the native environment
    group: DeviceSelection | None = None  # the GPUs; None: the command runs on the CPU
    misfits: Mapping[str, str] = {}  # kind of MISFITS -> evidence; --force overrides it
    engine: str = NATIVE  # name of a container engine, or NATIVE
    # the image where this engine can run it; None if it is not built
    built: BuiltImage | None = None
    reason: Step | None = None  # the first reason against it; None: it can run
    # why this one is chosen, and no other; of the chosen candidate alone
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Problem, ...] = ()  # remarks for the user; of the chosen candidate alone

    @property
    def name(self) -> str:
        """The name of the image, or NATIVE."""
        return self.image.name if self.image else NATIVE

    @property
    def fits(self) -> bool:
        """Whether the image fits the hardware, or --force overrides that it does not."""
        return self.reason is None or self.reason[0] not in MISFITS

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of one group that are used; empty on a CPU."""
        return self.group.gpus if self.group else ()

    @property
    def fused(self) -> bool:
        """It has fused attention kernels for these GPUs."""
        return bool(self.image and self.group and fused(self.image, self.group.arch))


class Hardware(msgspec.Struct, frozen=True):
    """The GPUs of a host, sorted, and the images that fit them."""

    # the selected GPUs by vendor, architecture and partitioning; of each vendor, GPUs with the
    # highest capability first
    groups: tuple[DeviceSelection, ...]
    selections: tuple[DeviceSelection, ...]  # the visible devices of each vendor
    # variables that name no GPU of a vendor or contradict each other; such a vendor has no group
    errors: tuple[ConfigurationError, ...]
    offers: tuple[Candidate, ...]  # in order of preference; those that do not fit come last
    undriven: tuple[Problem, ...]  # GPUs without a driver
    obstacles: tuple[Problem, ...]  # those, and groups that no image of the catalog fits
    findings: tuple[Problem, ...]  # remarks about GPUs, drivers and images, whatever is chosen
    absent: str  # the reason why no GPU is used, if there is no group

    @property
    def served(self) -> tuple[Candidate, ...]:
        """The offers that fit GPUs, best first."""
        return tuple(offer for offer in self.offers if offer.group and not offer.misfits)


def hardware_of(inputs: LaunchInputs) -> Hardware:
    """Sort the GPUs that may be used into groups, and find the images that fit each."""
    catalog, host, masks = inputs.catalog, inputs.host, inputs.masks
    # Integrated GPUs are used only where no other GPU could be, and where an image has code for
    # them: there they count as any other.
    if not any(gpu.driven and not gpu.integrated for gpu in host.gpus):
        host = replace(host, gpus=tuple(
            replace(gpu, integrated=gpu.arch is None or not has_code(catalog, gpu.vendor, gpu.arch))
            if gpu.integrated else gpu for gpu in host.gpus
        ))  # fmt: skip
    findings = []
    for gpu in host.gpus:
        device = f"{gpu.product} at {gpu.pci}"
        if gpu.integrated:
            remedy = "nothing to do; it is used only alone, if an image has code for it"
            findings.append(Problem("An integrated GPU is not used", device, remedy))
        elif gpu.driven and gpu.readable and not (gpu.arch or gpu.obstacle or host.stated):
            remedy = "report it, so that the table can have it"
            evidence = f"{device} is in no table"
            findings.append(warning("A GPU of unknown architecture", evidence, remedy))
    groups, selections = list[DeviceSelection](), list[DeviceSelection]()
    errors = list[ConfigurationError]()
    for name, vendor in VENDORS.items():
        if not any(gpu.driven for gpu in host.gpus if gpu.vendor == name):
            continue
        driver = host.driver(name)
        mismatch = vendor.driver_warning(driver, catalog.drivers.get(name, ())) if driver else None
        findings += [mismatch] if mismatch else []
        try:
            selection = select(name, host.gpus, masks, host.slurm)
        except ConfigurationError as error:
            errors.append(error)
            findings.append(as_warning(error))
            continue
        selections.append(selection)
        findings += selection.remarks
        alike: dict[tuple[str, bool], list[Gpu]] = {}
        for gpu in selection.gpus:
            if not gpu.integrated:
                alike.setdefault((gpu.arch or "", bool(gpu.instances)), []).append(gpu)
        for arch, cut in sorted(alike, key=lambda key: vendor.capability(key[0]), reverse=True):
            same = tuple(alike[arch, cut])  # of partitioned cards one is used
            groups.append(replace(selection, gpus=same[:1] if cut else same))
    if elsewhere := unused(host.bus):
        findings.append(warning("GPUs are not used", elsewhere))
    offers, unserved, remarks = _offers(groups, inputs)
    undriven = tuple(_undriven(host))
    return Hardware(
        groups=tuple(groups), selections=tuple(selections), errors=tuple(errors),
        offers=tuple(offers), undriven=undriven, obstacles=(*unserved, *undriven),
        findings=(*findings, *remarks), absent=_absent(host, selections),
    )  # fmt: skip


def _undriven(host: Host) -> Iterator[Problem]:
    """Yield a warning for GPUs that a virtual machine holds, and for those without a driver."""
    for vendor in VENDORS.values():
        idle = [gpu for gpu in host.gpus if gpu.vendor == vendor.name and not gpu.driven]
        for gpu in idle:
            if gpu.obstacle:
                device = f"{gpu.product} at {gpu.pci}: {gpu.obstacle}"
                yield warning("A GPU cannot be used here", device, "give it back to the host")
        products = Counter(gpu.product for gpu in idle if not gpu.integrated and not gpu.obstacle)
        if products:
            names = ", ".join(f"{count} x {product}" for product, count in products.items())
            evidence = f"{names} on the PCI bus, no {vendor.module} driver"
            remedy = f"load it (`modprobe {vendor.module}`) or install it"
            yield warning("The GPU driver is not loaded", evidence, remedy)


def _offers(
    groups: Sequence[DeviceSelection], inputs: LaunchInputs
) -> tuple[list[Candidate], list[Problem], list[Problem]]:
    """Return every offer in order of preference, the groups without one that fits, and remarks."""
    catalog, requested = inputs.catalog, inputs.catalog.image(inputs.settings.image.value)
    images = (requested,) if requested else catalog.images

    def offer(image: Image, group: DeviceSelection | None) -> Candidate:
        return Candidate(image, group, misfits_of(image, group, groups, inputs))

    if inputs.gpu_use == "never":  # an image for GPUs runs on the CPU too
        return [offer(image, None) for image in sorted(images, key=for_gpus)], [], []
    served, unserved, remarks = [], list[Problem](), list[Problem]()
    for group in groups:
        of_group = {i.name: offer(i, group) for i in images if i.vendor == group.vendor}
        ranked = sorted(images, key=lambda image: preference(image, group.arch, catalog))
        fitting = [of_group[i.name] for i in ranked
                   if i.name in of_group and not of_group[i.name].misfits]  # fmt: skip
        if fitting:
            remarks += _image_remarks([*of_group.values()], group, catalog)
            served.append((fitting[0].fused, not group.gpus[0].instances, len(group.gpus), fitting))
        else:
            unserved.append(_unserved(group, [*of_group.values()], inputs))
    served.sort(key=lambda best: best[:3], reverse=True)
    # Images that do not fit are offers too: their reasons are the explanation.
    unfit = []
    for image in sorted(images, key=for_gpus, reverse=True):
        theirs = [offer(image, group) for group in groups if group.vendor == image.vendor]
        unfit += [candidate for candidate in theirs if candidate.misfits]
        unfit += [] if theirs else [offer(image, None)]
    return [*(c for *_, fitting in served for c in fitting), *unfit], unserved, remarks


def _unserved(
    group: DeviceSelection, of_group: Sequence[Candidate], inputs: LaunchInputs
) -> Problem:
    """Return the warning that no image fits a group, by the oldest one that is compiled for it."""
    remedy, why = "", f"the catalog has no image for GPUs of {VENDORS[group.vendor].title}"
    if of_group:
        usable = [o for o in of_group if "processor" not in o.misfits] or of_group
        oldest = ([o for o in usable if o.image and serves(o.image, group.arch)] or usable)[-1]
        why = f"{oldest.name}: {'; '.join(oldest.misfits.values())}"
        no_code = not has_code(inputs.catalog, group.vendor, group.arch)
        if no_code and "architecture" in oldest.misfits:  # no driver helps
            why = f"no image has code for {named(group.arch)}"
        elif oldest.misfits.keys() == {"driver"}:
            remedy = "install a newer GPU driver"
    return warning("No image serves these GPUs", f"{group}; {why}", remedy)


def misfits_of(
    image: Image,
    group: DeviceSelection | None,
    groups: Sequence[DeviceSelection],
    inputs: LaunchInputs,
) -> dict[str, str]:
    """Return why an image does not fit the processor and a group of GPUs, or no GPU, by kind."""
    misfits, host, on_gpus = {}, inputs.host, for_gpus(image)
    if image.machines and host.machine not in image.machines:
        machines = " and ".join(image.machines)
        misfits["processor"] = f"it is built for {machines} and the processor is {host.machine}"
    if group is None:
        if on_gpus and inputs.gpu_use != "never":
            whose = f"GPU{'s' * bool(groups)} of {title(image.vendor or '')}"
            vendors = ", ".join(sorted({title(present.vendor) for present in groups}))
            misfits["vendor"] = (
                f"it is for {whose}, not of {vendors}" if groups
                else f"it needs a {whose} and none can be used"
            )  # fmt: skip
        return misfits
    obstacles = dict.fromkeys(gpu.obstacle for gpu in group.gpus if gpu.obstacle)
    if obstacles and on_gpus:
        misfits["device"] = "; ".join(obstacles)
    # The architecture of a GPU with an obstacle does not matter, one of a site may not be stated.
    unknown = host.stated and group.arch == UNKNOWN
    if not (obstacles or unknown or image.archs is None or serves(image, group.arch)):
        misfits["architecture"] = f"its PyTorch was not compiled for {named(group.arch)}"
        if group.arch in image.no_blas:
            kernels = f"its PyTorch has kernels for {group.arch}, its BLAS library has none"
            misfits["architecture"] = kernels
    driver = host.driver(group.vendor)
    if driver and on_gpus:
        ranges = inputs.catalog.drivers.get(driver.vendor, ())
        vendor = VENDORS[driver.vendor]
        if evidence := vendor.driver_misfit(driver, image.pins, image.least_driver, ranges):
            misfits["driver"] = evidence
    return misfits


def fault_of(image: Image, arch: str, catalog: Catalog) -> StackFault | None:
    """Return a reported fault of an image that no option and no variable avoids."""
    faults = catalog.faults_of(image.vendor, image.pins, arch)
    return next((fault for fault in faults if not fault.flags and not fault.variables), None)


def _image_remarks(
    offers: Sequence[Candidate], group: DeviceSelection, catalog: Catalog
) -> Iterator[Problem]:
    """Yield notes on images for a group: kept out by the kernel driver alone, ranked by a fault."""
    newer = [offer for offer in offers if not offer.misfits or offer.misfits.keys() == {"driver"}]
    if newer and newer[0].image and "driver" in newer[0].misfits:
        image, against = newer[0].image, newer[0].misfits["driver"]
        evidence = f"{image.name} ({image.title}) for {group}: {against}"
        yield Problem("A newer kernel driver would serve a newer image", evidence)
    faults = {offer.name: fault_of(offer.image, group.arch, catalog)
              for offer in offers if offer.image and not offer.misfits}  # fmt: skip
    for name, fault in faults.items() if not all(faults.values()) else ():
        if fault is not None:
            evidence = f"{name} for {group}: {fault.reason} ({fault.source})"
            remedy = f"`aam-launch --image {name} check` measures whether it occurs"
            yield Problem("An image with a reported fault is ranked below others", evidence, remedy)


def _absent(host: Host, selections: Sequence[DeviceSelection]) -> str:
    """Return the reason why no GPU is used, for a host without a group."""
    for selection in selections:
        usable = [gpu for gpu in selection.ours if not gpu.integrated]
        if usable and not any(gpu in usable for gpu in selection.gpus):
            remaining = "only an integrated one" if selection.gpus else "none"
            return f"{selection.source} leaves {remaining} of the {len(selection.ours)} GPUs"
    if any(not gpu.driven and not gpu.integrated for gpu in host.gpus):
        return "there are GPUs, but no driver is loaded for them"
    if any(gpu.driven and not gpu.readable for gpu in host.gpus):
        return "the GPUs of this host belong to other jobs"
    if any(gpu.integrated for gpu in host.gpus):
        return "the only GPU is an integrated one; no image computes on it"
    return unused(host.bus) or "there is no GPU"


def named(arch: str) -> str:
    """Return an architecture in words."""
    return "a GPU of unknown architecture" if arch == UNKNOWN else arch


def preference(image: Image, arch: str, catalog: Catalog) -> tuple[bool, bool]:
    """Return a key that sorts images for an architecture: the preferred one first."""
    return fault_of(image, arch, catalog) is not None, arch not in image.prefer


def serves(image: Image, arch: str) -> bool:
    """Return whether the image's PyTorch runs on an architecture."""
    return image.vendor in VENDORS and VENDORS[image.vendor].serves(image.archs or (), arch)


def has_code(catalog: Catalog, vendor: str, arch: str) -> bool:
    """Return whether an image of the catalog for a vendor's GPUs runs on an architecture."""
    return any(image.vendor == vendor and serves(image, arch) for image in catalog.images)


def fused(image: Image, arch: str) -> bool:
    """Return whether the image has fused attention kernels for an architecture."""
    return image.vendor in VENDORS and VENDORS[image.vendor].fused(image.attention, arch)


def for_gpus(image: Image) -> bool:
    """Return whether an image is known to need a GPU of some vendor."""
    return image.vendor not in (CPU, None)
