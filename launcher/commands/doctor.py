"""`aam-launch doctor`: report the facts of this host or of a capture, and its problems."""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aam.contract.dataclass import dataclass
from aam.contract.errors import AamError, Problem, Unavailable
from aam.contract.options import basic_option
from launcher import capture, config, system
from launcher.commands import parse_own, print_json, show
from launcher.commands.explain import facts, host_rows, lines_of, row, shortened, stored_reports
from launcher.commands.submit import node_of
from launcher.detect import detect, with_versions
from launcher.engines import ENGINES, command, spython_client
from launcher.findings import Decision, as_warning, entries, warning
from launcher.gpus import VENDORS
from launcher.host.facts import DeviceNode, EngineFact, Gpu, Host
from launcher.launch import gather, nearest_folder, plan_launch
from launcher.plan.assembly import Plan
from launcher.plan.decision import assess, denials, fitting
from launcher.plan.environment import unset
from launcher.plan.hardware import Hardware, has_code
from launcher.plan.inputs import BuiltImage, LaunchInputs, Request
from launcher.plan.visible_devices import counted
from launcher.slurm.node import GB, cpus_near, interfaces
from launcher.slurm.node import gpus as usable_gpus
from launcher.slurm.site import Site

COLOUR = re.compile("\x1b\\[[0-9;]*m")
START_TIMEOUT = 120  # seconds; the first start may unpack the image
IMAGE_SPACE = 20 << 30  # bytes that an image and its building take


@dataclass(frozen=True)
class Doctor:
    """Show GPUs, drivers and engines of this host, what would fail, and the remedy.

    With --site also the facts of a cluster with their sources and the commands that confirm them,
    and, where this host has none of its GPUs, what a job on a node would run in.

    Examples:
        aam-launch doctor --site cosmos
        aam-launch doctor --capture node.tar
    """

    capture: Path | None = basic_option(
        "Write the facts about this host that decisions depend on to a tar.", role="output"
    )


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Report, or write a capture; the exit status is the status of a launch on this host."""
    options = parse_own(Doctor, argv, "doctor")
    root = launcher_options.get("--host") or Path("/")
    if options.capture is not None:
        host = with_versions(detect(root), ENGINES)
        print(f"{capture.write(host, options.capture)} files in {options.capture}")
        return 0
    inputs = gather(Request("check", {}, launcher_options), root)
    host, name = inputs.host, inputs.settings.site.value
    host = with_versions(host, ENGINES) if host.live else host
    site = config.site(name) if name else None
    # A login node does not compute: check what a job needs, on a node as the site describes it.
    vendor = site.values.vendor if site and host.live and host.slurm is None else ""
    job_inputs = inputs
    if site and vendor and not usable_gpus(host, vendor):
        job_inputs = replace(inputs, host=node_of(site, host, site.values.gpus_per_node, vendor))
    elsewhere, hardware, fits = job_inputs is not inputs, None, list[str]()
    with suppress(AamError):  # the plan fails for the same reason
        hardware, candidates = assess(job_inputs)
        fits = fitting(candidates)
    findings = [*examine(inputs, hardware)]
    findings += tried(inputs, host.engines, fits) if host.live else ()
    # A launch, or a job, that computes on a GPU if there is one.
    error, runs = None, ""
    try:
        _, plan = plan_launch(job_inputs)
        gpus = counted(plan.gpus) if plan.gpus else "the CPU"
        runs = f"{plan.image} by {plan.engine}" if plan.image else f"natively, {plan.program}"
        runs += f"{' on a node' * elsewhere}, {gpus}"
    except AamError as refusal:
        error = refusal
        # The refusal is listed once, as an error.
        findings = [f for f in findings if (f.cause, f.evidence) != (error.cause, error.evidence)]
        cause = f"A {'job' if elsewhere else 'launch'} would be refused: {error.cause}"
        findings.append(Unavailable(cause, error.evidence, error.remedy))
    archs = {gpu.arch for gpu in host.gpus}
    stored = stored_reports(Path(inputs.reports))
    reports = [report for report in stored if report.key.get("arch") in archs]
    if "--json" in launcher_options:
        print_json({
            "host": facts(host),
            "site": msgspec.to_builtins(dict(site.facts)) if site else None,
            "fitting": fits,
            "check_reports": msgspec.to_builtins(reports),
            "findings": entries(findings),
        })  # fmt: skip
    else:
        rows = [*host_rows(host, inputs.catalog), *device_rows(host)]
        rows.append(row("images", f"{', '.join(fits)} would fit"))
        if host.live:
            scratch = nearest_folder(inputs.settings.scratch.value)
            room = f"{shutil.disk_usage(scratch).free // GB} GB free at '{scratch}'"
            rows += [row("scratch", room), row("network", ", ".join(interfaces("*")))]
        selections = hardware.selections if hardware else ()
        rows += [row("selected", s.summary) for s in selections if s.source != "host"]
        rows += [row("aam check", f"{r.verdict}; {r.made}, {r.stack}") for r in reports]
        if hardware and hardware.groups and not reports:
            rows.append(row("aam check", "not yet measured; the first run on a GPU does that"))
        rows += [row("job" if elsewhere else "launch", runs)] if runs else []
        lines = [*lines_of(rows), *(site_lines(site) if site else ())]
        show(*lines, *(f"{f.severity:<13} {f}" for f in findings))
    if error:
        return error.status
    return Unavailable.status if any(isinstance(f, AamError) for f in findings) else 0


def tried(
    inputs: LaunchInputs, engines: Sequence[EngineFact], order: Sequence[str]
) -> Iterator[Problem]:
    """Yield what this host alone shows: room for images, their start, running containers."""
    folder = nearest_folder(inputs.settings.image_dir.value)
    if (free := shutil.disk_usage(folder).free) < IMAGE_SPACE:
        evidence = f"{free >> 30} GiB free at '{folder}'"
        yield warning("Little room for images", evidence, "set AAM_IMAGE_DIR")
    # The best image that is built is started once with every engine that can run it.
    programs = set()
    for engine in engines:
        places = [p for p in inputs.built if engine.name in p.engines and p.image in order]
        program = os.path.realpath(engine.path)
        if engine.obstacle is None and places and program not in programs:
            programs.add(program)
            best = min(places, key=lambda built: order.index(built.image))
            yield _trial(engine, best, os.environ)
    if instances := spython_client.instances() if spython_client.available() else []:
        remedy = "nothing to do; `instance stop NAME` of the engine ends one"
        yield Problem("Instances of containers run", "; ".join(instances), remedy)


def _trial(engine: EngineFact, image: BuiltImage, present: Mapping[str, str]) -> Problem:
    """Run `aam --version` in an image as a launch would, without GPUs, and report the outcome."""
    plan = Plan(engine.name, engine.path, ("--version",), image=image.image, place=image.place,
                user=(os.geteuid(), os.getegid()), unset=unset(present, engine.traits))  # fmt: skip
    began, messages, failure, version = time.monotonic(), list[str](), "", ""
    try:
        done = system.run(command(plan), START_TIMEOUT, plan.environment(present))
    except OSError as error:  # a TimeoutError among them
        failure = error.strerror or str(error)
    else:
        lines = [COLOUR.sub("", line).strip() for line in done.stderr.splitlines()]
        messages = [line for line in lines if line]
        version = (done.stdout.splitlines() or ["no version"])[0][:40]
        if done.returncode != 0:
            failure = messages[-1] if messages else f"exit status {done.returncode}"
    if failure:
        remedy = f"try `{engine.path} --debug` on it, or another --runtime"
        cause = f"{engine.name} cannot start {image.image}"
        return Unavailable(cause, f"{image.place}: {failure.strip()}", remedy)
    evidence = f"{version} with {engine.name}, in {time.monotonic() - began:.1f} s"
    if slow := [line for line in messages if "sandbox" in line.lower()]:
        remedy = "ask for squashfuse or the set-uid starter; each start unpacks the image"
        return warning(f"{image.image} starts slowly", f"{evidence}; {slow[0]}", remedy)
    return Problem(f"{image.image} starts", evidence)


def examine(inputs: LaunchInputs, hardware: Hardware | None) -> list[Problem]:
    """Return what is noteworthy about devices, engines, variables, libraries and images."""
    host, catalog = inputs.host, inputs.catalog
    ours = [gpu for gpu in host.gpus if gpu.driven and gpu.readable]
    findings = [as_warning(denial) for denial in denials(host, ours)]
    if not host.replays and not host.engines:
        evidence = f"{host.absent_engines[0].name} is assumed"
        remedy = "make it on the host itself"
        findings.append(Problem("The capture records no engine", evidence, remedy))
    elif all(engine.obstacle is not None for engine in host.engines):
        evidence = "; ".join(f"{e.name}: {e.obstacle}" for e in host.engines) or "none is on PATH"
        absent = ", ".join(engine.name for engine in host.absent_engines)
        remedy = f"install one of {absent}; without one aam runs natively"
        findings.append(warning("No engine can start a container", evidence, remedy))
    if hardware is None:
        return findings
    findings += (*hardware.findings, *hardware.obstacles)
    for vendor in VENDORS.values():
        theirs = [gpu for gpu in host.gpus if gpu.vendor == vendor.name]
        findings += vendor.checks(host, theirs, partial(has_code, catalog, vendor.name))
    return findings


def device_rows(host: Host) -> Iterator[Decision]:
    """Yield user, libraries, GPUs, device nodes and engines of a host."""
    if host.user:
        groups = ", ".join(map(str, dict.fromkeys((host.user.gid, *host.user.groups))))
        yield row("user", f"number {host.user.uid}, in groups {groups}")
    for library in host.user_space.values():
        yield row("libraries", f"{library}: not visible in images")
    # GPUs: the partitions of a card on its line.
    cards: dict[str, list[Gpu]] = {}
    for number, gpu in enumerate(host.gpus):
        cards.setdefault(gpu.card or str(number), []).append(gpu)
    for card, partitions in cards.items():
        gpu = partitions[0]
        location = (gpu.pci if len(partitions) == 1 else card) or "an unknown place"
        near = sorted(cpus_near(gpu.pci)) if host.live else []
        cut = [instance.place for instance in gpu.instances]
        fields = (
            f"{gpu.product} ({gpu.arch or 'arch unknown'}) at {location}",
            f"{len(partitions)} partitions" if len(partitions) > 1 else "",
            f"{gpu.mode} {gpu.memory_mode or ''}".rstrip() if gpu.mode and not cut else "",
            shortened([path for partition in partitions for path in partition.nodes]),
            "integrated" if gpu.integrated else "",
            "" if all(partition.readable for partition in partitions) else "of another job",
            "" if gpu.driven else "no driver",
            f"near CPUs {shortened([str(cpu) for cpu in near])}" if near else "",
            f"{VENDORS[gpu.vendor].instance.rstrip('-')} {shortened(cut)}" if cut else "",
        )
        yield row("GPU", ", ".join(filter(None, fields)))
    # Device nodes with the same owner and mode are listed together.
    alike: dict[object, list[DeviceNode]] = {}
    for node in host.nodes:
        alike.setdefault((node.gid, node.mode, node.access), []).append(node)
    for nodes in alike.values():
        first, owner = nodes[0], "owner unknown"
        if first.mode is not None:
            access = {True: ", yours to use", False: ", not yours to use", None: ""}[first.access]
            owner = f"group {first.group or '?'} ({first.gid}), mode {first.mode:o}{access}"
        yield row("device", f"{shortened([node.path for node in nodes])}: {owner}")
    for engine in host.engines:
        version = f" {engine.version}" if engine.version else ""
        obstacle = f": {engine.obstacle}" if engine.obstacle else ""
        yield row("engine", f"{engine.path}{version}{obstacle}")


def site_lines(site: Site) -> Iterator[str]:
    """Yield the facts of a site: each with its source and the command that confirms it."""
    yield from lines_of([row("site", f"{site.title} ({site.name})")])
    for key, fact in site.facts.items():
        if key == "title" or key.startswith("sources."):
            continue
        answer = {True: "yes", False: "no"}.get(fact.value) if isinstance(fact.value, bool) else ""
        if isinstance(fact.value, Mapping):  # as a site file has it
            answer = json.dumps(fact.value).replace('"', "")
        elif isinstance(fact.value, tuple):
            answer = ", ".join(map(str, fact.value))
        yield f"    {key}: {answer or fact.value}"
        status = {True: "confirmed", False: "not confirmed", None: ""}[fact.confirmed]
        status += f"; to confirm: {fact.confirm}" if fact.confirm else ""
        if about := "; ".join(filter(None, [fact.source and f"from {fact.source}", status])):
            yield f"        {about}"
    yield from (f"    [{key}] {title}" for key, title in site.values.sources.items())
