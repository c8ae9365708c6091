"""Visible devices: Slurm, cgroups and the vendors' variables, reconciled to one list of GPUs.

Who sets what, and what its numbers count:

    Slurm, SLURM_JOB_GPUS            the GPUs of the whole node (gres.conf(5))
    Slurm, the variables below       all of one text: with ConstrainDevices they count the GPUs of
                                     the job from 0, else those of the node
    device cgroup (ConstrainDevices) no variable: the nodes of other jobs' GPUs cannot be opened
    ROCR_VISIBLE_DEVICES             AMD's GPUs that may be opened; numbers or UUIDs
    HIP_, CUDA_VISIBLE_DEVICES       on AMD what ROCR_VISIBLE_DEVICES leaves; the first that is set
                                     counts (GPU_DEVICE_ORDINAL is removed); beside GPUs of NVIDIA
                                     CUDA_VISIBLE_DEVICES is theirs alone
    CUDA_VISIBLE_DEVICES             NVIDIA's GPUs that may be opened, in CUDA's own order; numbers,
                                     UUIDs or one MIG instance

Exactly one variable goes on, the `visible_devices` of a vendor of `launcher.gpus`, and it counts
what the program will enumerate: `select` reconciles the above to a `DeviceSelection`, `value_for`
makes the value of that variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from aam.contract.errors import ConfigurationError
from launcher.gpus import VENDORS
from launcher.host.facts import Gpu, Slurm, numbers, whole_number

NOTHING = ("", "-1", "none", "void", "nodevfiles", "no_dev_files")


def visible_devices_variables() -> tuple[str, ...]:
    """Return every variable that selects devices; the launcher removes those it does not set."""
    found: list[str] = []
    for vendor in VENDORS.values():
        found += [vendor.visible_devices, *vendor.inner_variables, *vendor.other_variables]
    return tuple(dict.fromkeys(filter(None, found)))


class DeviceSelection(msgspec.Struct, frozen=True):
    """Visible devices of one vendor."""

    vendor: str  # whose
    gpus: tuple[Gpu, ...]  # in the order requested
    # those that this process may read, in the order in which a runtime counts them
    ours: tuple[Gpu, ...]
    summary: str  # what is listed and what is selected, for `explain`
    source: str  # what decided
    literal: str | None = None  # a value to pass as it is (names of hardware partitions)
    remark: tuple[str, str] | None = None  # what a number may mean, and the remedy


def select(
    vendor: str, gpus: Sequence[Gpu], variables: Mapping[str, str], slurm: Slurm | None
) -> DeviceSelection:
    """Reconcile everything that limits the GPUs of `vendor`."""
    listed = tuple(gpu for gpu in gpus if gpu.vendor == vendor and gpu.driven)
    ours = tuple(gpu for gpu in listed if gpu.readable)
    cards = len({gpu.card for gpu in listed if gpu.card})
    on_cards = f" on {cards} cards" if 0 < cards < len(listed) and len(ours) == len(listed) else ""
    counts = f"{len(listed)} listed{on_cards}, {len(ours)} readable"
    # The variables that count, outermost first. One that selects the GPUs of another vendor that is
    # here too is not counted.
    known = VENDORS[vendor]
    of_others = {VENDORS[g.vendor].visible_devices for g in gpus if g.driven and g.vendor != vendor}
    outer = variables.get(known.visible_devices)
    given = [(known.visible_devices, outer.strip())] if outer is not None else []
    for name in known.inner_variables:
        # An empty one counts as not set.
        if name not in of_others and variables.get(name, "").strip():
            given.append((name, variables[name].strip()))
            break
    what, source = ", ".join(f"{n}={v}" for n, v in given), " and ".join(n for n, _ in given)
    instance, literal, chosen, remark = known.instance, None, ours, None
    if not given:
        what, source = "no variable", "host"
        confined = len(ours) < len(listed)
        if slurm and slurm.gpus and not confined and max(slurm.gpus) < len(listed):
            chosen = tuple(listed[number] for number in slurm.gpus)
            what = f"Slurm allocated {','.join(map(str, slurm.gpus))}"
            source = "Slurm"
    elif instance and any(instance in value.upper() for _, value in given):
        name, literal = given[0]
        chosen = tuple(gpu for gpu in ours if gpu.instances)  # the driver alone knows the names
        if not chosen:
            evidence = f"{name}={literal}, no GPU that can be used is cut by {instance.rstrip('-')}"
            cause = f"A variable names a {instance.rstrip('-')} instance that is not there"
            raise ConfigurationError(cause, evidence, f"correct or unset {name}")
    else:
        (name, first), *inner = given
        counted = ours
        order = known.order
        unlike = len({(gpu.arch, gpu.product) for gpu in ours}) > 1
        if order and unlike and slurm is None and variables.get(order[0]) != order[1]:
            # The runtime counts the fastest first; the capability is what is known of that here.
            counted = tuple(sorted(
                ours, key=lambda gpu: known.capability(gpu.arch or ""), reverse=True
            ))  # fmt: skip
            if any(whole_number(item) is not None for item in first.split(",")):
                remark = (f"{name}={first} counts the fastest GPU first, taken as "
                          f"{', '.join(gpu.product for gpu in counted)}", f"set {'='.join(order)}, "
                          "or name GPUs by their UUID")  # fmt: skip
        chosen = _resolve(name, first, counted, listed, slurm)
        for name, value in inner:
            # It counts what the outer one leaves, or repeats its numbers.
            items = [item.strip() for item in value.split(",")]
            within = [whole_number(item) for item in items]
            if value == first:
                continue  # the same value in two variables
            if None in within or all(n < len(chosen) for n in within if n is not None):
                chosen = _resolve(name, value, chosen, chosen, None)
            elif set(items) <= {item.strip() for item in first.split(",")}:
                chosen = _resolve(name, value, ours, listed, slurm)
            else:
                evidence = f"{name}={value} counts what {known.visible_devices}={first} leaves"
                remedy = f"unset one of them, or use numbers below {len(chosen)}"
                cause = "Two variables that contradict each other"
                raise ConfigurationError(cause, evidence, remedy)
    # Integrated GPUs are enumerated and never used.
    shown = [gpu.nodes[0].rpartition("/")[2] if gpu.nodes else gpu.pci
             for gpu in chosen if not gpu.integrated]  # fmt: skip
    arrow = "→ none selected"
    if shown:
        more = ", ..." if len(shown) > 8 else ""
        arrow = f"→ {len(shown)} selected ({', '.join(shown[:8])}{more})"
    summary = f"{counts}, {what} {arrow}"
    return DeviceSelection(vendor, chosen, ours, summary, source, literal, remark)


def value_for(selection: DeviceSelection, visible: Sequence[Gpu]) -> str:
    """Return the value of the one variable, for a program that will enumerate `visible`.

    Indices count what is enumerated. Where GPUs of several archs are visible the runtime may
    enumerate them in another order, so they are named instead, if names are unique; those of a
    vendor whose runtime has an order of its own are named wherever they can be. Of hardware
    partitions one is used: the one that a variable names, or the first of the card that is named.
    """
    if selection.literal is not None:
        return selection.literal
    names = [gpu.uuid for gpu in selection.gpus if gpu.uuid]
    named = len(set(names)) == len(selection.gpus)
    mixed = len({gpu.arch for gpu in visible}) > 1
    if named and (VENDORS[selection.vendor].by_uuid or mixed):
        return ",".join(names)
    return ",".join(str(list(visible).index(gpu)) for gpu in selection.gpus)


def _resolve(
    name: str, value: str, pool: tuple[Gpu, ...], listed: tuple[Gpu, ...], slurm: Slurm | None
) -> tuple[Gpu, ...]:
    """Return the GPUs that a variable names: numbers within `pool`, names, or numbers of the node.

    In a confined job numbers count what may be read. They are those of the whole node if they
    cannot mean that, or if Slurm, whose own list has the whole node's numbers, has the same.
    """
    if value.lower() in NOTHING:
        return ()
    if value.lower() == "all":
        return pool
    items: list[str] = []
    for item in filter(None, map(str.strip, value.split(","))):
        # No runtime reads a range, but users write them.
        written_out = numbers(item) if "-" in item else None
        items += [item] if written_out is None else map(str, written_out)
    given = [number for item in items if (number := whole_number(item)) is not None]
    whole = len(pool) < len(listed) and (
        any(number >= len(pool) for number in given)
        or (slurm is not None and slurm.gpus == tuple(given))
    )
    chosen: list[Gpu] = []
    for item in items:
        found = _named(item, listed if whole else pool)
        if not found or not all(gpu.readable for gpu in found):
            evidence = f"'{item}' of {name}={value}, {len(pool)} can be used"
            remedy = f"correct or unset {name}"
            raise ConfigurationError("A variable names a GPU that is not there", evidence, remedy)
        chosen += [gpu for gpu in found if gpu not in chosen]
    return tuple(chosen)


def _named(item: str, field: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPU of a number, or those of a name or an unambiguous beginning of one."""
    number = whole_number(item)
    if number is not None:
        return field[number : number + 1]
    if not item.lower().startswith("gpu-"):
        return ()
    found = [gpu for gpu in field if gpu.uuid and gpu.uuid.lower().startswith(item.lower())]
    # The partitions of a card share its name.
    return tuple(found) if len({gpu.uuid for gpu in found}) == 1 else ()
