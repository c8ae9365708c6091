"""Visible devices: Slurm, cgroups and the vendors' variables, reconciled to one list of GPUs.

Who sets what, and what its numbers count:

    Slurm, SLURM_JOB_GPUS            the GPUs of the whole node (gres.conf(5))
    Slurm, the variables below       all of one text: with ConstrainDevices they count the GPUs of
                                     the job from 0, else the GPUs of the node
    device cgroup (ConstrainDevices) no variable: the nodes of other jobs' GPUs cannot be opened
    ROCR_VISIBLE_DEVICES             AMD's GPUs that may be opened; numbers or UUIDs
    HIP_, CUDA_VISIBLE_DEVICES,      on AMD what ROCR_VISIBLE_DEVICES leaves; the first that is set
    GPU_DEVICE_ORDINAL               counts; beside GPUs of NVIDIA CUDA_ is theirs alone
    CUDA_VISIBLE_DEVICES             NVIDIA's GPUs that may be opened, in CUDA's own order; numbers,
                                     UUIDs or one MIG instance
    APPTAINERENV_X, --env X          X, in place of the shell's

Exactly one variable goes on, and it counts what the program will enumerate: `masks_of` reads all,
`select` reconciles them, `value_for` makes its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from aam.contract.errors import ConfigurationError, Problem
from aam.contract.records import Sourced
from launcher.findings import warning
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Slurm, numbers, whole_number

UNKNOWN = "unknown"  # an architecture that is in no table, or that a site does not state
NOTHING = ("", "-1", "none", "void", "nodevfiles", "no_dev_files")


def visible_devices_variables() -> tuple[str, ...]:
    """Return every variable that selects devices; a plan sets at most one of them."""
    variables: list[str] = []
    for vendor in VENDORS.values():
        variables += [vendor.visible_devices, *vendor.inner_variables, *vendor.other_variables]
    return tuple(dict.fromkeys(filter(None, variables)))


def masks_of(
    present: Mapping[str, str], requested: Mapping[str, Sourced[str | None]],
    prefixes: Iterable[str],
) -> dict[str, Sourced[str]]:  # fmt: skip
    """Return every variable that selects devices or orders them, with its origin.

    Those `requested` by --env and settings outrank the `present` ones; an engine sets a variable
    of the container by a prefix ("APPTAINERENV_").
    """
    orders = (vendor.order[0] for vendor in VENDORS.values() if vendor.order)
    spelled = ("", *sorted(prefixes, reverse=True))  # Apptainer's own before Singularity's
    masks: dict[str, Sourced[str]] = {}
    for name in (*visible_devices_variables(), *orders):
        for prefix in spelled:
            if prefix + name in present:
                masks[name] = Sourced(present[prefix + name].strip(), prefix + name)
        if name in requested:
            value = present.get(name) if requested[name].value is None else requested[name].value
            if value is not None:
                masks[name] = Sourced(value.strip(), requested[name].source)
    return masks


class DeviceSelection(msgspec.Struct, frozen=True):
    """Visible devices of one vendor, or a group of them of one architecture."""

    vendor: str  # whose
    gpus: tuple[Gpu, ...]  # in the order requested
    # those that this process may read, in the order in which a runtime counts them
    ours: tuple[Gpu, ...]
    summary: str  # what is listed and what is selected, for `explain`
    source: str  # what decided
    literal: str | None = None  # a value to pass as it is (names of hardware partitions)
    remarks: tuple[Problem, ...] = ()  # what a number may mean, and GPUs of other jobs

    @property
    def arch(self) -> str:
        """The architecture of a group, or "unknown"."""
        return self.gpus[0].arch or UNKNOWN

    def __str__(self) -> str:
        """Return number, product and architecture, such as "4 x MI300A (gfx942)"."""
        return counted(self.gpus)


def counted(gpus: Sequence[Gpu]) -> str:
    """Return number, product and architecture of alike GPUs, such as "4 x MI300A (gfx942)"."""
    first = gpus[0]
    name = VENDORS[first.vendor].instance.rstrip("-")
    cut = f", cut by {name}" if first.instances else ""
    return f"{len(gpus)} x {first.product} ({first.arch or 'arch unknown'}{cut})"


def select(
    vendor: str, gpus: Sequence[Gpu], masks: Mapping[str, Sourced[str]], slurm: Slurm | None
) -> DeviceSelection:
    """Reconcile everything that limits the GPUs of `vendor`; `masks` comes from `masks_of`."""
    driven = tuple(gpu for gpu in gpus if gpu.vendor == vendor and gpu.driven)
    ours = tuple(gpu for gpu in driven if gpu.readable)
    cards = len({gpu.card for gpu in driven if gpu.card})
    on_cards = f" on {cards} cards" if 0 < cards < len(driven) and len(ours) == len(driven) else ""
    counts = f"{len(driven)} listed{on_cards}, {len(ours)} readable"
    # The variables that count, outermost first. One that selects the GPUs of another vendor that is
    # here too is not counted.
    rules = VENDORS[vendor]
    of_others = {VENDORS[g.vendor].visible_devices for g in gpus if g.driven and g.vendor != vendor}
    # An empty one of the inner ones counts as not set.
    set_inside = [n for n in rules.inner_variables if n in masks and n not in of_others]
    inner_masks = [n for n in set_inside if masks[n].value]
    outside = [n for n in (rules.visible_devices,) if n in masks]
    limits = [(name, masks[name]) for name in (*outside, *inner_masks[:1])]
    limits_text = ", ".join(f"{name}={mask.value}" for name, mask in limits)
    source = " and ".join(dict.fromkeys(mask.source for _, mask in limits))
    instance, literal, chosen, remarks = rules.instance, None, ours, list[Problem]()
    # Slurm numbers the GPUs of the whole node; if it confines the job, other GPUs are not readable.
    of_slurm, allocated = (slurm and slurm.gpus) or (), tuple[Gpu, ...]()
    if of_slurm and len(ours) == len(driven) and max(of_slurm) < len(driven):
        allocated = tuple(driven[number] for number in of_slurm)
    numbered = ",".join(map(str, of_slurm))
    if not limits:
        limits_text, source = "no variable", "host"
        if allocated:
            chosen, limits_text, source = allocated, f"Slurm allocated {numbered}", "Slurm"
    elif instance and any(instance in mask.value.upper() for _, mask in limits):
        name, literal = limits[0][0], limits[0][1].value
        chosen = tuple(gpu for gpu in ours if gpu.instances)  # the driver alone knows the names
        if not chosen:
            evidence = f"{name}={literal}, no usable GPU is partitioned by {instance.rstrip('-')}"
            cause = f"A variable names a {instance.rstrip('-')} instance that does not exist here"
            raise ConfigurationError(cause, evidence, f"correct or unset {limits[0][1].source}")
    else:
        (name, outer), *inner = limits
        first, counted, order = outer.value, ours, rules.order
        unlike = len({(gpu.arch, gpu.product) for gpu in ours}) > 1
        by_bus = order and order[0] in masks and masks[order[0]].value == order[1]
        if order and unlike and slurm is None and not by_bus:
            # The runtime counts the fastest first; the capability is what is known of that.
            capability = [-rules.capability(gpu.arch or "") for gpu in ours]
            counted = tuple(ours[n] for n in sorted(range(len(ours)), key=capability.__getitem__))
            if any(whole_number(item) is not None for item in first.split(",")):
                products = ", ".join(gpu.product for gpu in counted)
                evidence = f"{name}={first} counts the fastest GPU first, taken as {products}"
                remedy = f"set {'='.join(order)}, or name GPUs by their UUID"
                remarks.append(warning("Numbers of unlike GPUs", evidence, remedy))
        chosen = _resolve(name, outer, counted, driven, slurm)
        for name, mask in inner:
            # It counts what the outer one leaves, or repeats its numbers.
            value, items = mask.value, [item.strip() for item in mask.value.split(",")]
            within = [whole_number(item) for item in items]
            if value == first:
                continue  # the same value in two variables
            if None in within or all(n < len(chosen) for n in within if n is not None):
                chosen = _resolve(name, mask, chosen, chosen, None)
            elif set(items) <= {item.strip() for item in first.split(",")}:
                chosen = _resolve(name, mask, ours, driven, slurm)
            else:
                evidence = f"{name}={value} counts what {rules.visible_devices}={first} leaves"
                remedy = f"unset one of them, or use numbers below {len(chosen)}"
                cause = "Two variables that contradict each other"
                raise ConfigurationError(cause, evidence, remedy)
        if slurm and allocated and not set(chosen) <= set(allocated):
            evidence = f"{limits_text}, job {slurm.job} has {numbered} of the node"
            remedy = f"unset {source}; other jobs may use those GPUs"
            remarks.append(warning("GPUs outside of the Slurm allocation", evidence, remedy))
    # Integrated GPUs are enumerated and never used.
    ids = [gpu.nodes[0].rpartition("/")[2] if gpu.nodes else gpu.pci
             for gpu in chosen if not gpu.integrated]  # fmt: skip
    names = f" ({', '.join(ids[:8])}{', ...' * (len(ids) > 8)})" if ids else ""
    summary = f"{counts}, {limits_text} → {len(ids) or 'none'} selected{names}"
    return DeviceSelection(vendor, chosen, ours, summary, source, literal, tuple(remarks))


def value_for(selection: DeviceSelection, visible: Sequence[Gpu]) -> str:
    """Return the value of the one variable, for a program that will enumerate `visible`.

    Where GPUs of several archs are visible, or the runtime has an order of its own, they are named
    if names are unique. Of hardware partitions one is used: the named one, or the first of a card.
    """
    if selection.literal is not None:
        return selection.literal
    names = [gpu.uuid for gpu in selection.gpus if gpu.uuid]
    by_name = len(set(names)) == len(selection.gpus)
    mixed = len({gpu.arch for gpu in visible}) > 1
    if by_name and (VENDORS[selection.vendor].order or mixed):
        return ",".join(names)
    return ",".join(str(list(visible).index(gpu)) for gpu in selection.gpus)


def _resolve(
    name: str, mask: Sourced[str], pool: tuple[Gpu, ...], all_gpus: tuple[Gpu, ...],
    slurm: Slurm | None,
) -> tuple[Gpu, ...]:  # fmt: skip
    """Return the GPUs that a variable names: numbers within `pool`, names, or numbers of the node.

    In a confined job numbers count the readable GPUs. They count all GPUs of the node if they
    cannot mean that, or if they equal Slurm's own list, whose numbers count all GPUs.
    """
    value = mask.value
    if value.lower() in NOTHING:
        return ()
    if value.lower() == "all":
        return pool
    items: list[str] = []
    for item in filter(None, map(str.strip, value.split(","))):
        # No runtime reads a range, but users write them.
        written_out = numbers(item) if "-" in item else None
        items += [item] if written_out is None else map(str, written_out)
    item_numbers = [number for item in items if (number := whole_number(item)) is not None]
    beyond = any(number >= len(pool) for number in item_numbers)
    of_node = slurm is not None and slurm.gpus == tuple(item_numbers)
    of_whole_node, chosen = len(pool) < len(all_gpus) and (beyond or of_node), list[Gpu]()
    for item in items:
        matching = _named(item, all_gpus if of_whole_node else pool)
        if not matching or not all(gpu.readable for gpu in matching):
            evidence = f"'{item}' of {name}={value}, {len(pool)} can be used"
            remedy = f"correct or unset {mask.source}"
            raise ConfigurationError(
                "A variable names a GPU that does not exist here", evidence, remedy
            )
        chosen += [gpu for gpu in matching if gpu not in chosen]
    return tuple(chosen)


def _named(item: str, field: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPU of a number, or the GPUs of a name or an unambiguous beginning of one."""
    number = whole_number(item)
    if number is not None:
        return field[number : number + 1]
    if not item.lower().startswith("gpu-"):
        return ()
    matching = [gpu for gpu in field if gpu.uuid and gpu.uuid.lower().startswith(item.lower())]
    # The partitions of a card share its name.
    return tuple(matching) if len({gpu.uuid for gpu in matching}) == 1 else ()
