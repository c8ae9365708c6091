"""Errors for launches without a usable engine, image, GPU or device node, with remedies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from aam.contract.errors import NotPermitted, Unavailable
from launcher.findings import Finding
from launcher.gpus import VENDORS, device_nodes
from launcher.host.facts import Gpu, Host
from launcher.plan.catalog import Catalog, Image
from launcher.plan.gpu_groups import GpuSurvey
from launcher.plan.request import GpuUse
from launcher.plan.settings import LaunchSettings

ABSENT = "A device node is absent"


def require_served(
    gpus: GpuSurvey,
    host: Host,
    use: GpuUse,
    without: str = "add --device cpu (or --image cpu) to compute on the processor",
) -> None:
    """Check that the command may compute on the processor; `without` is the remedy.

    Raises:
        Unavailable: there are GPUs that cannot be used, or a GPU is required and there is none.
    """
    if gpus.obstacles:
        evidence = "; ".join(finding.evidence for finding in gpus.obstacles)
        remedies = [finding.remedy for finding in gpus.obstacles if finding.remedy]
        raise Unavailable(gpus.obstacles[0].cause, evidence, ", or ".join([*remedies, without]))
    if use == "required":
        evidence = no_gpu(gpus, host)
        raise Unavailable("A GPU is requested and none can be used", evidence, without)


def no_gpu(gpus: GpuSurvey, host: Host) -> str:
    """Return the reason why no GPU is used, where no image lacks for one that can be used."""
    for selection in gpus.selections:
        if any(not gpu.integrated for gpu in selection.ours) and not selection.gpus:
            return f"{selection.source} leaves none of the {len(selection.ours)} GPUs"
    if any(not gpu.driven and not gpu.integrated for gpu in host.gpus):
        return "there are GPUs but no driver is loaded for them"
    if any(gpu.driven and not gpu.readable for gpu in host.gpus):
        return "the GPUs of this host belong to other jobs"
    if any(gpu.integrated for gpu in host.gpus):
        return "the only GPU is an integrated one, which no image computes on"
    return "there is no GPU"


def misfit(
    name: str, found: Sequence[str], gpus: GpuSurvey, without: Sequence[Image]
) -> Unavailable:
    """Return the error for a requested image that does not fit; `without` need no GPU."""
    near = [*(image for group in gpus.groups for image in group.images), *without][:1]
    remedy = f"the nearest fit is --image {near[0].name}; " if near else ""
    cause = f"Image {name} does not fit this host"
    return Unavailable(cause, "; ".join(found), f"{remedy}--force runs it anyway")


def wrong_processor(catalog: Catalog, host: Host, install: str) -> Unavailable:
    """Return the error where no image is built for the processor; `install` gets PyTorch."""
    machines = sorted({machine for image in catalog.images for machine in image.machines})
    return Unavailable(
        "No image is built for this processor",
        f"{host.machine}; the images are built for {', '.join(machines)}",
        f"install PyTorch here: `{install}`",
    )


def not_runnable(
    image: Image, engines: Sequence[str], install: str | None, settings: LaunchSettings, host: Host
) -> Unavailable:
    """Return the error for a launch without an engine or a built image, with the remedy."""
    if not engines:
        obstacles = "; ".join(f"{e.name}: {e.obstacle}" for e in host.engines if e.obstacle)
        known = ", ".join(engine.name for engine in host.absent_engines)
        evidence = obstacles or f"none of {known} is on PATH"
        remedy = "install one of them" + (f", or PyTorch here: `{install}`" if install else "")
        return Unavailable("There is nothing to run aam with", evidence, remedy)
    if lacks_cdi(image, host) and all(host.traits(engine).needs_cdi for engine in engines):
        vendor = VENDORS[image.vendor or ""]
        cause = f"{engines[0]} needs a CDI description of {vendor.title} GPUs"
        return Unavailable(cause, "none in /etc/cdi", f"`{vendor.cdi_command}` makes it")
    folder = settings.text("image_dir")
    names = ", ".join(engines)
    where = f"no {folder}/{image.name}.sif, and {folder}/images.json names none for {names}"
    remedy = f"put a SIF at {folder}, or name one with --image FILE"
    if image.definition:
        usual = next((engine.name for engine in host.engines if engine.obstacle is None), None)
        with_engine = "" if usual in engines else f" --engine {engines[0]}"
        remedy = f"`aam-launch images build {image.name}{with_engine}` builds it"
    if install is not None:
        remedy += f"; `{install}` lets aam run without an image"
    return Unavailable(f"Image {image.name} is not built", where, remedy)


def lacks_cdi(image: Image, host: Host) -> bool:
    """Return whether the host has no CDI description of devices that need its libraries."""
    vendor = VENDORS.get(image.vendor or "")
    if vendor is None or not vendor.host_libraries:
        return False
    return not any(device.kind == vendor.cdi_kind for device in host.cdi)


def require_devices(host: Host, gpus: Sequence[Gpu]) -> None:
    """Check that the user may use the devices of the GPUs that were chosen.

    Raises:
        NotPermitted: with the group that may, and how to get into it.
        Unavailable: a device node is not there.
    """
    for denial in denials(host, gpus):
        error_class = Unavailable if denial.cause == ABSENT else NotPermitted
        raise error_class(denial.cause, denial.evidence, denial.remedy)


def denials(host: Host, gpus: Iterable[Gpu]) -> Iterator[Finding]:
    """Yield an error for every device node of `gpus` that is absent or may not be opened."""
    for path, vendor in device_nodes(gpus).items():
        node = host.node(path)
        if node is None:
            if host.complete and not VENDORS[vendor].late_nodes:
                remedy = "load the driver again, or ask for a node with GPUs"
                yield Finding("error", ABSENT, path, remedy)
        elif node.access is False:
            remedy = "ask Slurm for GPUs, such as `--gpus 1`"
            evidence = f"a device cgroup refuses {path}, whose permissions would allow it"
            if not node.refused(host.user):
                group = node.group or str(node.gid)
                remedy = f"`sudo usermod -aG {group} $USER`, then log in again"
                evidence = f"{path} belongs to group {group} (mode {node.mode or 0:o})"
            yield Finding("error", "A GPU may not be used", evidence, remedy)
