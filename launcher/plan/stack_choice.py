"""Selection of the stack of a virtual environment, with its reasons. Pure.

A stack is an image of the catalog without its container: a PyTorch and the packages of its lock.
An environment is made once and serves every job of a host, so it takes the newest stack that
serves all usable GPUs of the vendor; where no stack serves them all, the newest for the group that
an image would use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aam.contract.errors import Unavailable
from launcher.findings import REQUESTED, Decision, Finding
from launcher.host.facts import Gpu, Host
from launcher.plan import refusals
from launcher.plan.catalog import CPU, Catalog, Image
from launcher.plan.gpu_groups import GpuGroup, GpuSurvey, best, counted, left_out, survey
from launcher.plan.image_fit import for_processors, problems, processor_problems
from launcher.plan.settings import LaunchSettings

OPTION = "--stack"


@dataclass(frozen=True)
class StackChoice:
    """A stack, the GPUs that it serves (none: it computes on the processor), and the reasons."""

    stack: Image
    gpus: tuple[Gpu, ...]
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]


def choose_stack(
    host: Host, catalog: Catalog, settings: LaunchSettings, force: bool = False
) -> StackChoice:
    """Return the stack for a virtual environment on a host.

    Args:
        settings: the setting `image` names a stack, or is "auto".
        force: take the named stack even if it serves no GPU of the host.

    Raises:
        Unavailable: no stack serves the GPUs or the processor, or the named one does not.
        UsageError: an unknown stack, or GPUs of two vendors between which nothing decides.
    """
    catalog = replace(catalog, images=tuple(i for i in catalog.images if i.arguments))
    gpus = survey(host, catalog, ())
    if settings.text("image") != "auto":
        return _named(host, catalog, settings, gpus, force)
    group = best(gpus.groups, OPTION)
    if group is None:
        refusals.require_served(gpus, host, "automatic", f"{OPTION} {CPU} computes without them")
        stacks = for_processors(catalog, host)
        if not stacks:
            machines = sorted({machine for image in catalog.images for machine in image.machines})
            evidence = f"{host.machine}; the locks are for {', '.join(machines)}"
            remedy = "install PyTorch by the instructions of its project"
            raise Unavailable("No stack is locked for this processor", evidence, remedy)
        return _chosen(stacks[0], (), refusals.no_gpu(gpus, host), "host", gpus)
    same = [g for g in gpus.groups if g.images and g.selection.vendor == group.selection.vendor]
    common = [image for image in group.images if all(image in g.images for g in same)]
    used = same if common else [group]
    stack = (common or group.images)[0]
    served = " and ".join(counted(g.gpus) for g in used)
    preference = stack.prefer.get(group.arch)
    faults = [catalog.unmeasured_fault(image, group.arch) for image in (stack, *group.images)]
    newest = "the newest" + (" without a reported fault" if any(faults) and not faults[0] else "")
    why = f"{newest} that serves {served}" + (f"; {preference}" if preference else "")
    if common and stack is not group.images[0]:
        why += f"; {group.images[0].name} is newer and does not serve all of them"
    return _chosen(stack, used, why, stack.source, gpus)


def _named(
    host: Host, catalog: Catalog, settings: LaunchSettings, gpus: GpuSurvey, force: bool
) -> StackChoice:
    """Return the stack that a user or a site names, if it serves GPUs of the host."""
    name, source = settings.text("image"), settings.source("image")
    stack = catalog.require(name, "stack")
    used = [group for group in gpus.groups if stack in group.images]
    found = processor_problems(stack, host)
    if not used and stack.vendor != CPU:
        theirs = [g for g in gpus.groups if g.selection.vendor == stack.vendor] or gpus.groups
        found = problems(stack, theirs[0].gpus if theirs else (), catalog, host)
    if found and not force:
        fitting = [image.name for group in gpus.groups for image in group.images]
        fitting += [image.name for image in for_processors(catalog, host)]
        remedy = f"{OPTION} {fitting[0]} does; " if fitting else ""
        remedy += "--force makes the environment anyway, for another host"
        raise Unavailable(f"Stack {name} does not serve this host", "; ".join(found), remedy)
    why = f"{REQUESTED}, although {'; '.join(found)}" if found else REQUESTED
    return _chosen(stack, used, why, source, gpus)


def _chosen(
    stack: Image, used: list[GpuGroup] | tuple[()], why: str, source: str, gpus: GpuSurvey
) -> StackChoice:
    decisions = [*gpus.decisions, Decision("stack", stack.name, why, source)]
    others = [group for group in gpus.groups if group not in used]
    decisions += left_out(others, used[0] if used else None, f"stack {stack.name}")
    findings = (*gpus.findings, *gpus.undriven)
    served = tuple(gpu for group in used for gpu in group.gpus)
    return StackChoice(stack, served, tuple(decisions), findings)
