"""The kinds of GPU of a host, what serves each, and which kind is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from aam.options.frozen import dataclass
from launcher.errors import UsageError
from launcher.host.facts import VENDORS, Gpu, Host, Vendor
from launcher.plan.catalog import Catalog, Image
from launcher.plan.decision import Decision, Finding
from launcher.plan.fit import fast, problems
from launcher.plan.masks import Selection, select


@dataclass(frozen=True)
class Kind:
    """GPUs of one arch of one vendor, whole or cut by MIG, and the images that fit, best first."""

    selection: Selection
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
        """What the best kind has most of: fused attention, whole cards, their number."""
        return self.fast, not self.gpus[0].instances, len(self.gpus)


def kinds_of(
    host: Host, catalog: Catalog, there: Container[str]
) -> tuple[list[Kind], list[Decision], list[Finding]]:
    """Sort the GPUs that may be used by vendor and arch; images that are `there` come first."""
    kinds: list[Kind] = []
    decisions: list[Decision] = []
    findings = _idle(host)
    for vendor in VENDORS:
        gpus = [gpu for gpu in host.gpus if gpu.vendor == vendor]
        if not any(gpu.driven for gpu in gpus):
            continue
        selection = select(vendor, gpus, host.environment, host.slurm)
        decisions.append(
            Decision(
                f"{vendor} GPUs", selection.story, "what jobs and masks leave", selection.source
            )
        )
        by_kind: dict[tuple[str | None, bool], list[Gpu]] = {}
        for gpu in selection.gpus:
            if not gpu.integrated:
                by_kind.setdefault((gpu.arch, bool(gpu.instances)), []).append(gpu)
        for (arch, cut), same in by_kind.items():
            same = same[:1] if cut else same  # CUDA computes on one MIG instance at a time
            fitting = [i for i in catalog.images if i.vendor == vendor
                       and not problems(i, same, catalog, host)]  # fmt: skip
            fitting.sort(key=lambda i: (i.name not in there, arch not in dict(i.prefer)))
            kinds.append(Kind(selection, tuple(same), tuple(fitting)))
            findings += [] if fitting else [_unserved(vendor, same, catalog, host)]
    return kinds, decisions, findings


def _unserved(vendor: Vendor, gpus: Sequence[Gpu], catalog: Catalog, host: Host) -> Finding:
    """Say why no image serves GPUs, by the example of the first of their vendor."""
    first = next((image for image in catalog.images if image.vendor == vendor), None)
    reasons = problems(first, gpus, catalog, host) if first else ["there is none for them"]
    evidence = f"{_counted(gpus)}: {first.name + ', ' if first else ''}{'; '.join(reasons)}"
    remedy = "they stay idle; name an --image with --force to try one"
    return Finding("warning", "No image serves these GPUs", evidence, remedy)


def _idle(host: Host) -> list[Finding]:
    """Say which GPUs cannot be used and why."""
    findings = []
    for vendor, module in (("amd", "amdgpu"), ("nvidia", "nvidia")):
        undriven = [gpu for gpu in host.gpus if gpu.vendor == vendor and not gpu.driven]
        if undriven:
            products = Counter(gpu.product for gpu in undriven)
            counted = ", ".join(f"{count} x {product}" for product, count in products.items())
            evidence = f"{counted} on the PCI bus, no {module} driver"
            remedy = f"load it (`modprobe {module}`) or install it"
            findings.append(Finding("warning", "The GPU driver is not loaded", evidence, remedy))
    for gpu in host.gpus:
        if gpu.driven and gpu.readable and gpu.arch is None:
            evidence = f"{gpu.product} at {gpu.pci} is in no table and no library tells"
            remedy = "tell what it is, so that the table can have it"
            findings.append(Finding("warning", "A GPU of unknown arch", evidence, remedy))
    for gpu in host.gpus:
        if gpu.integrated:
            evidence = f"{gpu.product} at {gpu.pci}"
            remedy = "nothing to do; no stack computes on it"
            findings.append(Finding("note", "An integrated GPU is not used", evidence, remedy))
    return findings


def best(kinds: Sequence[Kind]) -> Kind | None:
    """Return the kind to use, by its rank; None if none is served."""
    served_kinds = [kind for kind in kinds if kind.images]
    if not served_kinds:
        return None
    ranked = sorted(served_kinds, key=lambda kind: kind.rank, reverse=True)
    rivals = [k for k in ranked[1:] if k.gpus[0].vendor != ranked[0].gpus[0].vendor]
    if rivals and rivals[0].fast == ranked[0].fast:
        names = " and ".join(f"{len(k.gpus)} x {k.gpus[0].product}" for k in (ranked[0], rivals[0]))
        suits = " or ".join(k.images[0].name for k in (ranked[0], rivals[0]))
        raise UsageError("Two vendors, equally supported", names, f"choose with --image {suits}")
    return ranked[0]


def left_out(kinds: Sequence[Kind], used: Kind | None, runs: str) -> list[Decision]:
    """Say which GPUs stay unused: those of other kinds, and further cards that MIG cuts."""
    said = []
    for kind in kinds:
        if kind is not used:
            why = f"{runs} computes on the processor"
            if used:
                why = f"one kind at a time, and {runs} runs on {used.gpus[0].product} ({used.arch})"
            said.append(Decision("left out", _counted(kind.gpus), why, "host"))
    if used and used.gpus[0].instances:
        cut = [gpu for gpu in used.selection.gpus if gpu.instances and gpu not in used.gpus]
        why = "CUDA computes on one MIG instance at a time"
        said += [Decision("left out", _counted(cut), why, "host")] if cut else []
    return said


def _counted(gpus: Sequence[Gpu]) -> str:
    return f"{len(gpus)} x {gpus[0].product} ({gpus[0].arch or 'arch unknown'})"
