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

from aam.contract.errors import ConfigurationError
from launcher.findings import Finding, warning
from launcher.gpus import VENDORS, title, unused
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import CPU, Catalog, Image, StackFault
from launcher.plan.inputs import LaunchInputs
from launcher.plan.visible_devices import DeviceSelection, select

MISFITS = ("processor", "vendor", "device", "architecture", "driver")
"""Kinds of misfit of an image, in the order in which they are found; --force overrides them."""
UNKNOWN = "unknown"
"""An architecture that is in no table, or that a site does not state."""


class GpuGroup(msgspec.Struct, frozen=True):
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
        return self.gpus[0].arch or UNKNOWN

    def __str__(self) -> str:
        """Return number, product and architecture, such as "4 x MI300A (gfx942)"."""
        return counted(self.gpus)


class Offer(msgspec.Struct, frozen=True):
    """An image for a group of GPUs or for the processor, and why it does not fit there."""

    image: Image
    group: GpuGroup | None  # None: the command computes on the processor
    misfits: Mapping[str, str]  # kind of MISFITS -> evidence; empty: it fits

    @property
    def fused(self) -> bool:
        """It has fused attention kernels for these GPUs."""
        return self.group is not None and fused(self.image, self.group.arch)


class Hardware(msgspec.Struct, frozen=True):
    """The GPUs of a host, sorted, and the images that fit them."""

    # the selected GPUs by vendor, architecture and partitioning; of each vendor those of the
    # highest capability first
    groups: tuple[GpuGroup, ...]
    selections: tuple[DeviceSelection, ...]  # the visible devices of each vendor
    # variables that name no GPU of a vendor or contradict each other; such a vendor has no group
    errors: tuple[ConfigurationError, ...]
    offers: tuple[Offer, ...]  # in order of preference, those that do not fit after those that do
    unserved: tuple[Finding, ...]  # groups that no image of the catalog fits
    undriven: tuple[Finding, ...]  # GPUs without a driver
    findings: tuple[Finding, ...]  # remarks about GPUs, drivers and images, whatever is chosen
    absent: str  # the reason why no GPU is used where there is no group

    @property
    def obstacles(self) -> tuple[Finding, ...]:
        """Why GPUs of this host cannot be used by any image."""
        return (*self.unserved, *self.undriven)

    @property
    def served(self) -> tuple[Offer, ...]:
        """The offers that fit GPUs, best first."""
        return tuple(offer for offer in self.offers if offer.group and not offer.misfits)


def hardware_of(inputs: LaunchInputs) -> Hardware:
    """Sort the GPUs that may be used into groups, and find the images that fit each."""
    catalog, host = inputs.catalog, inputs.host
    # Integrated GPUs are used only where no other GPU could be, and where an image has code for
    # them: there they count as any other.
    if not any(gpu.driven and not gpu.integrated for gpu in host.gpus):
        host = replace(host, gpus=tuple(
            replace(gpu, integrated=gpu.arch is None or not has_code(catalog, gpu.vendor, gpu.arch))
            if gpu.integrated else gpu for gpu in host.gpus
        ))  # fmt: skip
    findings = []
    for gpu in host.gpus:
        place = f"{gpu.product} at {gpu.pci}"
        if gpu.integrated:
            remedy = "nothing to do; it is used only alone, if an image has code for it"
            findings.append(Finding("note", "An integrated GPU is not used", place, remedy))
        elif gpu.driven and gpu.readable and not (gpu.arch or gpu.obstacle or host.stated):
            cause, evidence = "A GPU of unknown architecture", f"{place} is in no table"
            remedy = "report it, so that the table can have it"
            findings.append(Finding("warning", cause, evidence, remedy))
    masks = inputs.masks
    groups: list[GpuGroup] = []
    selections: list[DeviceSelection] = []
    errors: list[ConfigurationError] = []
    for name, known in VENDORS.items():
        if not any(gpu.driven for gpu in host.gpus if gpu.vendor == name):
            continue
        driver = host.driver(name)
        mismatch = known.driver_warning(driver, catalog.drivers.get(name, ())) if driver else None
        findings += [mismatch] if mismatch else []
        try:
            selection = select(name, host.gpus, masks, host.slurm)
        except ConfigurationError as error:
            errors.append(error)
            findings.append(warning(error))
            continue
        selections.append(selection)
        findings += selection.remarks
        alike: dict[tuple[str | None, bool], list[Gpu]] = {}
        for gpu in selection.gpus:
            if not gpu.integrated:
                alike.setdefault((gpu.arch, bool(gpu.instances)), []).append(gpu)
        by_capability = sorted(
            alike.items(), key=lambda item: known.capability(item[0][0] or ""), reverse=True
        )
        for (_, cut), same in by_capability:  # of partitioned cards one is used
            groups.append(GpuGroup(selection, tuple(same[:1] if cut else same)))
    if elsewhere := unused(host.bus):
        findings.append(Finding("warning", "GPUs are not used", elsewhere))
    offers, unserved, remarks = _offers(groups, inputs)
    return Hardware(
        groups=tuple(groups),
        selections=tuple(selections),
        errors=tuple(errors),
        offers=offers,
        unserved=unserved,
        undriven=tuple(_undriven(host)),
        findings=(*findings, *remarks),
        absent=_absent(host, selections),
    )


def _undriven(host: Host) -> Iterator[Finding]:
    """Yield a warning for GPUs that a virtual machine holds, and for those without a driver."""
    for vendor in VENDORS.values():
        idle = [gpu for gpu in host.gpus if gpu.vendor == vendor.name and not gpu.driven]
        for gpu in idle:
            if gpu.obstacle:
                place = f"{gpu.product} at {gpu.pci}: {gpu.obstacle}"
                remedy = "give it back to the host"
                yield Finding("warning", "A GPU cannot be used here", place, remedy)
        products = Counter(gpu.product for gpu in idle if not gpu.integrated and not gpu.obstacle)
        if products:
            names = ", ".join(f"{count} x {product}" for product, count in products.items())
            evidence = f"{names} on the PCI bus, no {vendor.module} driver"
            remedy = f"load it (`modprobe {vendor.module}`) or install it"
            yield Finding("warning", "The GPU driver is not loaded", evidence, remedy)


def _offers(
    groups: Sequence[GpuGroup], inputs: LaunchInputs
) -> tuple[tuple[Offer, ...], tuple[Finding, ...], list[Finding]]:
    """Return every offer in order of preference, the groups without one that fits, and remarks."""
    images = inputs.catalog.images
    if inputs.gpu_use == "never":  # an image for GPUs computes on the processor too
        alone = [Offer(image, None, misfits_of(image, None, groups, inputs)) for image in images]
        return tuple(sorted(alone, key=lambda offer: for_gpus(offer.image))), (), []
    served: list[tuple[Offer, ...]] = []
    rest: list[Offer] = []
    unserved: list[Finding] = []
    remarks: list[Finding] = []
    for group in groups:
        of_group = [Offer(image, group, misfits_of(image, group, groups, inputs))
               for image in images if image.vendor == group.vendor]  # fmt: skip
        fitting = [offer for offer in of_group if not offer.misfits]
        rest += [offer for offer in of_group if offer.misfits]
        if fitting:
            remarks += _image_remarks(of_group, inputs.catalog)
            fitting.sort(key=lambda offer: preference(offer.image, group.arch, inputs.catalog))
            served.append(tuple(fitting))
            continue
        # By the example of the least demanding image: the oldest one compiled for this processor
        # and these GPUs.
        why, remedy = f"the catalog has no image for GPUs of {VENDORS[group.vendor].title}", ""
        if of_group:
            here = [o for o in of_group if built_for(o.image, inputs.host.machine)] or of_group
            oldest = ([o for o in here if serves(o.image, group.arch)] or here)[-1]
            why = f"{oldest.image.name}: {'; '.join(oldest.misfits.values())}"
            no_code = not has_code(inputs.catalog, group.vendor, group.arch)
            if no_code and "architecture" in oldest.misfits:  # no driver helps
                why = f"no image has code for {named(group.arch)}"
            elif oldest.misfits.keys() == {"driver"}:
                remedy = "install a newer GPU driver"
        unserved.append(Finding("warning", "No image serves these GPUs", f"{group}; {why}", remedy))
    served.sort(key=lambda of_group: (of_group[0].fused, *_size(of_group[0].group)), reverse=True)
    offers = [offer for of_group in served for offer in of_group]
    # Images that do not fit are offers too: their reasons are the explanation.
    with_group = {group.vendor for group in groups}
    on_processor = [
        image for image in images if not (for_gpus(image) and image.vendor in with_group)
    ]
    order = [image.name for image in images]
    rest += [Offer(image, None, misfits_of(image, None, groups, inputs)) for image in on_processor]
    rest.sort(key=lambda offer: (not for_gpus(offer.image), order.index(offer.image.name)))
    return (*offers, *rest), tuple(unserved), remarks


def misfits_of(
    image: Image, group: GpuGroup | None, groups: Sequence[GpuGroup], inputs: LaunchInputs
) -> dict[str, str]:
    """Return why an image does not fit the processor and a group of GPUs: kind -> evidence.

    Without a group the command computes on the processor; `groups` are all of the host.
    """
    misfits, host = {}, inputs.host
    if not built_for(image, host.machine):
        machines = " and ".join(image.machines)
        misfits["processor"] = f"it is built for {machines} and the processor is {host.machine}"
    if group is None:
        if for_gpus(image) and inputs.gpu_use != "never":
            whose = f"GPU{'s' * bool(groups)} of {title(image.vendor or '')}"
            there = ", ".join(sorted({title(present.vendor) for present in groups}))
            misfits["vendor"] = (
                f"it is for {whose}, not of {there}" if groups
                else f"it needs a {whose} and none can be used"
            )  # fmt: skip
        return misfits
    obstacles = dict.fromkeys(gpu.obstacle for gpu in group.gpus if gpu.obstacle)
    if obstacles and for_gpus(image):
        misfits["device"] = "; ".join(obstacles)
    # The architecture of a GPU with an obstacle does not matter, one of a site may not be stated.
    unknown = host.stated and group.arch == UNKNOWN
    if not (obstacles or unknown or image.archs is None or serves(image, group.arch)):
        misfits["architecture"] = f"its PyTorch was not compiled for {named(group.arch)}"
    driver = host.driver(group.vendor)
    if driver and for_gpus(image):
        ranges = inputs.catalog.drivers.get(driver.vendor, ())
        vendor = VENDORS[driver.vendor]
        if evidence := vendor.driver_misfit(driver, image.pins, image.least_driver, ranges):
            misfits["driver"] = evidence
    return misfits


def _size(group: GpuGroup | None) -> tuple[bool, int]:
    return (not group.gpus[0].instances, len(group.gpus)) if group else (False, 0)


def _fault(image: Image, arch: str, catalog: Catalog) -> StackFault | None:
    """Return a reported fault of an image that no option and no variable avoids."""
    faults = catalog.faults_of(image.vendor, image.pins, arch)
    return next((fault for fault in faults if not fault.flags and not fault.variables), None)


def _image_remarks(offers: Sequence[Offer], catalog: Catalog) -> Iterator[Finding]:
    """Yield notes on images for a group: kept out by the kernel driver alone, ranked by a fault."""
    for offer in offers:
        if not offer.misfits:
            break
        if offer.misfits.keys() == {"driver"}:
            image, against = offer.image, offer.misfits["driver"]
            evidence = f"{image.name} ({image.title}) for {offer.group}: {against}"
            yield Finding("note", "A newer kernel driver would serve a newer image", evidence)
            break
    faults = [
        (offer, _fault(offer.image, offer.group.arch, catalog))
        for offer in offers
        if not offer.misfits and offer.group is not None
    ]
    for offer, fault in faults:
        if fault is not None and not all(reported for _, reported in faults):
            name = offer.image.name
            evidence = f"{name} for {offer.group}: {fault.reason} ({fault.source})"
            remedy = f"`aam-launch --image {name} check` measures whether it occurs"
            yield Finding("note", "A reported fault ranks a stack below others", evidence, remedy)


def _absent(host: Host, selections: Sequence[DeviceSelection]) -> str:
    """Return the reason why no GPU is used where there is no group."""
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


def counted(gpus: Sequence[Gpu]) -> str:
    """Return number, product and architecture of alike GPUs, such as "4 x MI300A (gfx942)"."""
    first = gpus[0]
    name = VENDORS[first.vendor].instance.rstrip("-")
    cut = f", cut by {name}" if first.instances else ""
    return f"{len(gpus)} x {first.product} ({first.arch or 'arch unknown'}{cut})"


def named(arch: str) -> str:
    """Return an architecture in words."""
    return "a GPU of unknown architecture" if arch == UNKNOWN else arch


def preference(image: Image, arch: str, catalog: Catalog) -> tuple[bool, bool]:
    """Return a key that sorts images for an architecture: the preferred one first."""
    return _fault(image, arch, catalog) is not None, arch not in image.prefer


def serves(image: Image, arch: str) -> bool:
    """Return whether the image's PyTorch runs on an architecture."""
    return image.vendor in VENDORS and VENDORS[image.vendor].serves(image.archs or (), arch)


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
