"""`aam-launch submit`: check a command as far as the login node can, then queue it as a job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from aam.contract.errors import AamError, CannotCreate, Problem, Unavailable, UsageError
from aam.contract.files import try_lock
from aam.contract.gpus import GPU
from aam.contract.options import build, specs
from aam.contract.options.command_line import arguments, parse_known
from aam.contract.preflight import require_no_password
from launcher import config
from launcher.commands import PROGRAM
from launcher.commands.job import ENV
from launcher.findings import warn, warning
from launcher.gpus import VENDORS, title
from launcher.host.facts import Driver, EngineFact, Gpu, Host
from launcher.images import index
from launcher.launch import gather
from launcher.plan.assembly import Plan, assemble_plan
from launcher.plan.catalog import CPU
from launcher.plan.decision import decide
from launcher.plan.inputs import NATIVE, LaunchInputs, Request, request_of
from launcher.plan.settings import LAUNCHER_OPTIONS
from launcher.slurm import checks, queue
from launcher.slurm import script as scripts
from launcher.slurm.queue import Queued
from launcher.slurm.script import TRIALS, Job, SubmitOptions
from launcher.slurm.site import PLAIN_SITE, Site
from launcher.system import user_folder

UNCONFIRMED = "unconfirmed"
"""In place of the number of a job, from before sbatch starts until it has printed the number."""
ONLY_HERE = ("--dry-run", "--json", "--gpus", "--host")
"""Options of the launcher that are about the submission, not about the launch on a node."""


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Queue a command of `aam` as a job, or print the script of the job."""
    job_values, command_line = parse_known(specs(SubmitOptions), argv)
    options = build(SubmitOptions, {**launcher_options, **job_values})
    if not [argument for argument in command_line if not argument.startswith("--")]:
        raise UsageError("Nothing to submit", "no command is named", "write `submit pretrain ...`")
    request = request_of({k: v for k, v in launcher_options.items() if k != "--gpus"}, command_line)
    if not request.paths("output"):
        evidence = f"`{request.command}` has no --output"
        raise UsageError("A job needs an output", evidence, "name a file for it")
    require_no_password(request)
    shares_trials = scripts.has_option(request.command, TRIALS)
    storage = str(request.value("--storage") or "")
    if shares_trials and storage.startswith("sqlite"):
        remedy = "give journal or leave it out, so that it is in --output-dir, or a database server"
        raise UsageError("A job sees no other SQLite database", f"--storage {storage}", remedy)
    if options.jobs is None:
        return queue_all([job_of(request, options)], request.dry_run)
    if not shares_trials:
        evidence, remedy = f"`{request.command}`", "submit each command by itself"
        raise UsageError("--jobs is for `search` alone", evidence, remedy)
    last = job_of(request, options)
    trials = job_of(replace(request, given={**request.given, TRIALS: True}), options)
    return queue_all([trials] * options.jobs + [last], request.dry_run, last_waits_for_all=True)


# --- the decisions


def job_of(request: Request, options: SubmitOptions) -> Job:
    """Return the job of a command, with the problems that keep it from running."""
    inputs = gather(request, usual_site=PLAIN_SITE)
    host, paths, force = inputs.host, inputs.paths, request.force
    site = config.site(inputs.settings.site.value or PLAIN_SITE)
    output = next(fact for fact in paths if fact.role == "output")
    if not output.absolute.isprintable():
        raise UsageError("No job script can hold this path", repr(output.absolute), "rename it")
    log = output.absolute.replace("%", "%%") + "-%j.log"
    requested = inputs.catalog.image(inputs.settings.image.value)
    on_gpus = request.computes_on_gpu and (requested is None or requested.vendor != CPU)
    partitions, name = queue.partitions(), scripts.partition_name(options, site, on_gpus)
    partition = queue.partition(partitions, name, (options.gpus or 1) if on_gpus else 0)
    job = scripts.allocation_of(request, options, site, log, partition, on_gpus)
    problems = scripts.over_limits(job, site, partition, force)
    vendor = site.values.vendor
    if on_gpus and job.gets_gpus and not vendor:
        try:
            vendor = vendor_of(inputs)
        except Unavailable as error:
            problems.append(error)
    gpus_used = job.gpus if job.gets_gpus else 0
    inputs = msgspec.structs.replace(inputs, host=node_of(site, host, gpus_used, vendor))
    # Of several by commas, and of another cluster, Slurm alone decides.
    elsewhere = "," in name or any(text.startswith("clusters=") for text in options.sbatch)
    if partitions and name and partition is None and not elsewhere:
        remedy = f"there are {', '.join(sorted({p.name for p in partitions}))}"
        problems.append(UsageError("No such partition", f"'{name}'", remedy))
    problems += checks.files(request, paths, site)
    try:
        choice = decide(inputs)
    except Unavailable as error:
        problems.append(error)
        if not request.dry_run:
            refuse(problems)
        assumed = (*inputs.built, *index.assumed(inputs.settings, inputs.catalog))
        inputs = msgspec.structs.replace(inputs, built=assumed)
        choice = decide(inputs)
    plan = assemble_plan(inputs, choice)
    if choice.built and choice.built in inputs.built and not problems:
        problems += checks.image(plan, site, force)
    # Without GPUs in the site file the node decides, unless the user has named an image.
    image_named = inputs.settings.image.value != "auto"
    stated = bool(site.values.vendor and site.values.arch) or image_named or not plan.image
    job_argv, variables = job_words(request, options, inputs, plan, stated)
    time = job.time or "the limit of the partition"
    if job.warn_seconds:
        again = ", and is queued again" if job.requeue else ""
        time += f"; it stops {job.warn_seconds} s before its limit{again}"
    reason = request.cpu_reason.partition(";")[0]
    device = f"the CPU{f'; GPUs not used: {reason}' if reason else ''}"
    image = f"{plan.image} by {plan.engine}, '{plan.place}'" if plan.image else "none"
    depends = "" if stated or not on_gpus else ", or as each node has GPUs"
    counts = f"{job.nodes} node{'s' * (job.nodes > 1)}"
    about = (
        f"aam {request.command}: {counts}, {job.ranks} rank{'s' * (job.ranks > 1)} each, "
        f"{site.title}",
        f"time: {time}",
        f"image: {image}{depends}",
        f"device: {'a GPU for each rank' if plan.gpus else device}{depends}",
    )
    text = scripts.script(job, site, about, [*PROGRAM, "job", *job_argv])
    idle = [*unused_gpus(request, job, site, partitions, partition, name)]
    warn([*idle, *plan.findings, *checks.advice(paths, PROGRAM, site, host)])
    os.environ.update(variables)  # sbatch hands them on
    return msgspec.structs.replace(job, script=text, output=Path(output.absolute),
                                   is_folder=output.folder, problems=tuple(problems))  # fmt: skip


def unused_gpus(
    request: Request, job: Job, site: Site, partitions: Sequence[queue.Partition],
    partition: queue.Partition | None, name: str,
) -> Iterator[Problem]:  # fmt: skip
    """Yield a warning for a job for GPUs that requests none, or that uses none of its nodes."""
    facts = site.values
    if job.on_gpus and not job.gets_gpus:
        evidence = f"site {site.name} states none, and Slurm counts none in the partition"
        remedy = "give another --partition or --gpus N, or --device cpu"
        yield warning("The job requests no GPU", evidence, remedy)
    elif not job.on_gpus and (
        partition.gpus if partition else facts.vendor and name != facts.cpu_partition
    ):
        reason, _, users = (request.cpu_reason or "image cpu runs on the CPU").partition("; ")
        number = f"{facts.gpus_per_node} x {facts.gpu}" if facts.vendor else "GPUs"
        nodes = f"the nodes of the partition have {number}"
        nodes = f"a job gets nodes with {number} whole" if facts.whole_nodes else nodes
        with_gpus = {p.name for p in partitions if p.gpus}
        cpu_partitions = sorted({p.name for p in partitions} - with_gpus)
        remedy = f"--partition {' or '.join(cpu_partitions)} has none; " if cpu_partitions else ""
        remedy += users or "leave --gpus out, and the GPUs to other jobs"
        yield warning("GPUs not used", f"{reason}, and {nodes}", remedy)


def job_words(
    request: Request, options: SubmitOptions, inputs: LaunchInputs, plan: Plan, stated: bool
) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of `aam-launch job`, and the variables that sbatch hands on."""
    absolute = inputs.absolute_request
    if plan.gpus and absolute.computes_on_gpu and "--device" not in absolute.given:
        absolute = absolute.with_values({"--device": GPU})
    site_file = inputs.settings.site.value or PLAIN_SITE  # in the job, a path is absolute
    if "/" in site_file or site_file.endswith(".yaml"):
        site_file = os.path.abspath(site_file)
    image_option = {"--image": plan.image} if stated and plan.image else {}
    flags = {f: value for f, value in request.launcher_options.items() if f not in ONLY_HERE}
    flags |= {"--site": site_file, "--runtime": plan.engine, **image_option}
    if inputs.settings.image_dir.source != "default":
        flags["--image-dir"] = inputs.settings.image_dir.value
    # Values of --env go into variables of sbatch; the options have only their names.
    pairs = [item.partition("=") for item in flags.get("--env", ())]
    variables = {f"{ENV}{name}": value for name, equals, value in pairs if equals}
    flags |= {"--env": tuple(name for name, *_ in pairs)} if pairs else {}
    beside = [] if options.stage is None else ["--stage", str(options.stage)]
    beside += ["--digest", plan.digest] if image_option and plan.digest else []
    beside += [] if options.memory_check else ["--no-memory-check"]
    return [*beside, *arguments(LAUNCHER_OPTIONS.values(), flags), *absolute.argv], variables


def vendor_of(inputs: LaunchInputs) -> str:
    """Return the GPU vendor of the image to use, for a site that states no vendor."""
    settings, catalog, native = inputs.settings, inputs.catalog, inputs.native
    names = [settings.image.value]
    if names == ["auto"]:
        names = [form.image for form in inputs.built]
    elif catalog.image(names[0]) is None:
        return ""  # the node decides
    vendors = {catalog.require(name).vendor for name in names}
    if settings.runtime.value == NATIVE:
        vendors = {native.vendor}
        if native.vendor == CPU:
            evidence, remedy = f"PyTorch of {native.python}", "add --device cpu"
            raise Unavailable("PyTorch computes on the CPU alone", evidence, remedy)
    candidates = [name for name in VENDORS if name in vendors]
    if len(candidates) > 1:
        evidence = f"for {' and '.join(map(title, candidates))}; the site states no GPUs"
        raise UsageError("Images of two vendors are built", evidence, "name one with --image")
    if not candidates:
        evidence = f"none in '{settings.image_dir.value}', and the site states no GPUs"
        remedy = "build the one for the GPUs of the nodes, or add --device cpu"
        raise Unavailable("No image for GPUs is built", evidence, remedy)
    return candidates[0]


def node_of(site: Site, host: Host, gpus_used: int, vendor: str) -> Host:
    """Return a node of `site` with the GPUs used; it has the engines of this host."""
    facts = site.values
    if vendor and vendor not in VENDORS:
        remedy = f"known are {', '.join(VENDORS)}, or none"
        raise UsageError("No such vendor", f"'{vendor}' in {site.where('vendor')}", remedy)
    gpus = tuple(Gpu(vendor, number, facts.arch or None, facts.gpu, f"{number:04x}:00:00.0")
                 for number in range(gpus_used if vendor else 0))  # fmt: skip
    engines = tuple(EngineFact(engine.name, engine.name, traits=engine.traits)
                    for engine in host.engines if engine.traits.several_ranks)  # fmt: skip
    return Host(
        root=f"site {site.name}", name=f"a node of {site.title}", kernel="unknown",
        machine=facts.machine or host.machine, gpus=gpus, nodes=(),
        drivers=(Driver(vendor, None, f"site {site.name}"),) if vendor else (), engines=engines,
        complete=False, stated=True, absent_engines=host.absent_engines, slurm=None, user=host.user,
    )  # fmt: skip


# --- the queue


def refuse(problems: Iterable[AamError]) -> None:
    """Raise the first of `problems`, if there are any, and print the others."""
    different = list({str(problem): problem for problem in problems}.values())
    for problem in different[1:]:
        print(f"aam-launch: {problem}", file=sys.stderr)
    if different:
        raise different[0]


def queue_all(
    jobs: Sequence[Job], dry_run: bool, last_waits_for_all: bool = False, after: str = "afterok"
) -> int:
    """Queue jobs of one output, each after the one before; or print their scripts."""
    different = list({job.script: job for job in jobs}.values())
    if dry_run:
        for problem in dict.fromkeys(str(p) for job in different for p in job.problems):
            print(f"aam-launch: warning: {problem}", file=sys.stderr)
        print("\n".join(job.script for job in different), end="")
        return 0
    refuse(problem for job in different for problem in job.problems)
    if waits := next(filter(None, [queue.test(job.script) for job in different]), ""):
        remedy = "the job is queued; it never starts if no node has so much"
        warn([warning("The nodes are not there now", waits, remedy)])
    numbers: list[str] = []
    with reserved(jobs[0].output, jobs[0].is_folder, queue.queued) as reserve:
        reserve(UNCONFIRMED)  # whatever becomes of this process, a job may be queued
        try:
            for job in jobs:
                dependencies = numbers if last_waits_for_all and job is jobs[-1] else numbers[-1:]
                waits_for = [] if last_waits_for_all and job is not jobs[-1] else dependencies
                numbers.append(queue.submit(job.script, waits_for, after))
        except AamError as error:
            if numbers:  # all jobs of an output are queued, or none
                queue.cancel(numbers)
            if not isinstance(error, queue.Unconfirmed):
                reserve("")
            raise
        reserve(numbers[-1])
    script_files = [kept_scripts() / f"{number}.sh" for number in numbers]
    for file, number, job in zip(script_files, numbers, jobs, strict=True):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(job.script)
        except OSError as error:
            evidence = f"'{file}', {error.strerror}; job {number} is queued"
            remedy = "`aam-launch jobs` does not list it; see squeue"
            raise CannotCreate("The script cannot be kept", evidence, remedy) from error
    for number, job in zip(numbers, jobs, strict=True):
        time = job.time or "the time of the partition"
        print(f"Job {number}: aam {job.command}, {job.nodes} x {job.ranks} ranks, {time}")
    print(f"follow   tail -F {shlex.quote(scripts.log_file(jobs[0].log, numbers[0]))}")
    print("state    aam-launch jobs")
    print(f"stop     aam-launch jobs cancel {' '.join(numbers)}\nscript   {script_files[0]}")
    return 0


def kept_scripts() -> Path:
    """Return the folder of the scripts of submitted jobs, each NUMBER.sh: `jobs` lists them."""
    return user_folder("XDG_STATE_HOME", os.environ) / "jobs"


@contextmanager
def reserved(
    path: Path, folder: bool, queued: Callable[[], Mapping[str, Queued]]
) -> Iterator[Callable[[str], None]]:
    """Reserve an output by a hidden file during a submission; call the value with its number."""
    file = path / ".aam-job" if folder else path.with_name(f".{path.name}.aam-job")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    except OSError as error:
        evidence, remedy = f"'{file.parent}', {error.strerror}", "choose another place"
        raise CannotCreate("The output folder cannot be made", evidence, remedy) from error
    with os.fdopen(handle, "r+") as stream:
        taken = "another submission" if try_lock(stream) == "taken" else ""
        holder = "" if taken else stream.read(100).strip()
        remedy = "wait for it, cancel it, or choose another output"
        if holder == UNCONFIRMED:
            taken = "a job without a number from Slurm"
            remedy = f"see `squeue --me`; if no such job is there, remove '{file}'"
        job = None if taken else queued().get(holder)
        taken = f"job {holder} ({job.state})" if job and job.active else taken
        if taken:
            evidence = f"'{path}' belongs to {taken}"
            raise CannotCreate("Two jobs cannot write one output", evidence, remedy)

        def reserve(number: str) -> None:
            stream.seek(0)
            stream.truncate()
            stream.write(f"{number}\n" if number else "")
            stream.flush()

        yield reserve
