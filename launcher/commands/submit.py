"""`aam-launch submit`: check a command as far as the login node can, then queue it as a job."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aam import __version__
from aam.contract.errors import AamError, ConfigurationError, Unavailable, UsageError
from aam.contract.options import build, names, options_of, parse_command, parse_known, specs
from aam.contract.shards import Shard, table_of
from aam.contract.yaml_document import Entry, read_entries
from launcher import config, input_files
from launcher.documents import user_folder
from launcher.findings import warn
from launcher.images import inventory
from launcher.options.submit import SubmitOptions, require_printable
from launcher.plan.assembly import assemble_plan
from launcher.plan.decision import decide as choose
from launcher.plan.mounts import PathFact, absolute_paths
from launcher.plan.plan import Plan
from launcher.plan.request import Request, request_of
from launcher.planning import gather
from launcher.slurm import allocation, checks, history, job_file, queue
from launcher.slurm.allocation import TRIALS, node_of, shares_trials
from launcher.slurm.job_file import FORMAT, JobFile
from launcher.slurm.script import SRUN, Allocation, log_file, script
from launcher.slurm.site import Site
from launcher.slurm.sweep import tasks_of

PLAIN_SITE = "slurm"
CODE = Path(__file__).parents[2]
"""The folder that holds the package `launcher`."""


@dataclass(frozen=True)
class Job:
    """A job that is decided.

    Attributes:
        allocation: what it requests of Slurm.
        site: where it runs.
        content: of its job file.
        output: the file or folder that it writes.
        part: its name among several jobs with this output; "" of the first.
        problems: what keeps it from running.
    """

    allocation: Allocation
    site: Site
    content: JobFile
    output: PathFact
    part: str
    problems: tuple[AamError, ...]

    def file(self) -> Path:
        """Return the job file."""
        return job_file.place_of(Path(self.output.absolute), self.output.folder, self.part)

    def script(self) -> str:
        """Return the script that sbatch takes."""
        about = f"aam {self.content.command}: {self.allocation.counts}, {self.site.title}"
        modules, place = self.site.strings("modules"), str(self.file())
        return script(self.allocation, about, modules, sys.executable, str(CODE), place)

    def summary(self) -> str:
        """Return the facts of the job, a line for each."""
        what, image = self.allocation, self.content.image
        time = what.time or "no limit of its own"
        if self.content.warn_seconds:
            again = ", and is queued again" if what.requeue else ""
            time += f"; it stops {self.content.warn_seconds} s before its limit{again}"
        place = f"{image.name}, '{image.place}' ({image.engine})"
        command = shlex.join(["aam", *self.content.command.split(), *self.content.arguments])
        tasks = f", an array of {what.tasks} tasks" if what.tasks else ""
        facts = {
            "nodes": f"{what.counts}, {self.site.title}{tasks}",
            "time": time,
            "image": place if image.name else f"none; Python '{sys.executable}'",
            "device": "a GPU for each rank" if self.content.gpus else "the processor",
            "command": command,
            "job file": str(self.file()),
        }
        return "".join(f"{name:<9} {value}\n" for name, value in facts.items())


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Queue a command of `aam` as a job, or print what would be queued."""
    given, rest = parse_known(specs(SubmitOptions), argv)
    requested = build(SubmitOptions, {**launcher_options, **given})
    require_printable(requested)
    if not [argument for argument in rest if not argument.startswith("--")]:
        raise UsageError("Nothing to submit", "no command is named", "write `submit pretrain ...`")
    request = request_of({k: v for k, v in launcher_options.items() if k != "--gpus"}, rest)
    if not request.paths("output"):
        evidence = f"`{request.command}` has no --output"
        raise UsageError("A job needs an output", evidence, "name a file for it")
    if requested.here:
        requested = _allocated(requested)
    task, last = _task_and_last(request, requested)
    jobs = [decided(task, requested)]
    if last is not None:
        alone = replace(requested, shards=None, array_tasks=None)
        jobs.append(decided(last, alone, "last"))
    if requested.here and not request.dry_run:
        _require_none(jobs)
        return _run_here(jobs[0])
    return queue_all(jobs, request.dry_run)


def queue_all(jobs: Sequence[Job], dry_run: bool, condition: str = "afterok") -> int:
    """Queue jobs of one output, each after the one before; or print what would be queued.

    Args:
        jobs: in their order.
        dry_run: print the jobs, and their problems as warnings.
        condition: see `queue.submit`.

    Raises:
        AamError: the first problem that keeps one from running, or Slurm refuses one.
    """
    if not dry_run:
        _require_none(jobs)
        return _queue(jobs, condition)
    for problem in dict.fromkeys(str(problem) for job in jobs for problem in job.problems):
        print(f"aam-launch: warning: {problem}", file=sys.stderr)
    print("\n".join(f"{job.summary()}\n{job.script()}" for job in jobs), end="")
    return 0


def _require_none(jobs: Sequence[Job]) -> None:
    """Raise the first problem of jobs."""
    for problem in (problem for job in jobs for problem in job.problems):
        raise problem


def _allocated(requested: SubmitOptions) -> SubmitOptions:
    """Return the options with the nodes and ranks of the allocation that this process is in.

    Raises:
        UsageError: it is in none, or in a task of an array.
    """
    variables = os.environ
    if "SLURM_JOB_ID" not in variables or requested.shards or requested.array_tasks:
        remedy = "leave --here out, or write it into a script for sbatch"
        raise UsageError("--here is for the script of one job", "no job has started it", remedy)
    ranks = variables.get("SLURM_NTASKS_PER_NODE")
    return replace(
        requested,
        nodes=int(variables.get("SLURM_JOB_NUM_NODES") or 1),
        gpus=int(ranks) if ranks else requested.gpus,
        memory_check=False,
    )


def _run_here(job: Job) -> int:
    """Replace this process by the batch process of the job; a second start reads the first file."""
    # A requeued script starts here again; the job file of its first start counts.
    file = job.file()
    if not (_restarted() and file.exists()):
        number = os.environ["SLURM_JOB_ID"]

        def others() -> dict[str, queue.Queued]:
            return {k: v for k, v in queue.queued().items() if k.partition("_")[0] != number}

        with history.reserved(Path(job.output.absolute), job.output.folder, others) as taken:
            job_file.write(job.content, file)
            taken.append(number)
    sys.stdout.flush()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(CODE), os.environ.get("PYTHONPATH")])
    )
    argv = [sys.executable, "-m", "launcher.slurm.job", str(file), *SRUN]
    os.execv(sys.executable, argv)


def _restarted() -> bool:
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0


def _task_and_last(request: Request, requested: SubmitOptions) -> tuple[Request, Request | None]:
    """Return the request of a job or of the tasks of its array, and that of the job after these.

    Raises:
        UsageError: the job is an array for two reasons, or the command is none of an array.
    """
    arrays = {"--shards": requested.shards, "--array": requested.array,
              "--array-tasks": requested.array_tasks}  # fmt: skip
    given = [f"{flag} {value}" for flag, value in arrays.items() if value is not None]
    if len(given) > 1:
        raise UsageError("Two arrays in one job", " and ".join(given), "give one of them")
    if requested.shards is not None:
        return request, _merge_of(request)
    if shares_trials(request.command):
        _require_shared_storage(request)
    if requested.array_tasks is None:
        return request, None
    if not shares_trials(request.command):
        evidence, remedy = f"`{request.command}`", "--array FILE varies options of any command"
        raise UsageError("--array-tasks is for `search` alone", evidence, remedy)
    return replace(request, given={**request.given, TRIALS: True}), request


def _require_shared_storage(request: Request) -> None:
    """Refuse an SQLite database that each job would look for on its own node.

    Raises:
        UsageError: --storage is a file.
    """
    url = str(request.value("--storage") or "")
    if url.startswith("sqlite"):
        remedy = "give journal or leave it out, so that it is in --output-dir, or a database server"
        raise UsageError("A job sees no other SQLite database", f"--storage {url}", remedy)


def _merge_of(request: Request) -> Request:
    """Return the request that joins the shards of a request.

    Raises:
        UsageError: the command has no shards.
    """
    if not any(spec.flag == "--shard" for spec in options_of(request.command)):
        known = [name for name in names() if any(s.flag == "--shard" for s in options_of(name))]
        evidence, remedy = f"`{request.command} --shards`", f"{', '.join(known)} have them"
        raise UsageError("A command without shards", evidence, remedy)
    given: dict[str, Any] = {"--output": _table_of(request)}
    given |= {"--overwrite": True} if request.value("--overwrite") else {}
    return Request("merge", given, request.launcher_options)


def _table_of(request: Request) -> Path:
    return table_of(request.value("--output"), request.value("--output-dir"))


def decided(request: Request, requested: SubmitOptions, part: str = "") -> Job:
    """Return the job, with the problems that keep it from running.

    Args:
        request: the command.
        requested: options of the job.
        part: see `Job`.

    Raises:
        AamError: no plan can be made.
    """
    inputs = gather(request)
    settings, here, paths, force = inputs.settings, inputs.host, inputs.paths, request.force
    site = config.site(settings.site.value or PLAIN_SITE)
    shared = absolute_paths(request, paths)
    tasks: tuple[tuple[str, ...], ...] = ()
    if requested.array is not None:
        shared, tasks = tasks_of(shared, _grid(requested.array, request.command))
    number = requested.shards or requested.array_tasks or len(tasks)
    log = _log(paths, bool(number))
    # Of the tasks of an array one may compute with the network, by the members that it has.
    varied = [replace(request, given={**request.given, **parse_command(request.command, task,
              incomplete=True)}) for task in tasks]  # fmt: skip
    planned = next((task for task in varied if task.uses_network), request)
    what = allocation.allocation_of(planned, requested, site, log, number)
    allocation.require_scriptable(site)
    inputs = replace(inputs, request=planned, host=node_of(site, here, what.gpus))
    problems: list[AamError] = []
    problems += allocation.over_limits(what, site) if not force else []
    problems += checks.files(request, paths, site)
    output = next(fact for fact in paths if fact.role == "output")
    if not _restarted():
        problems += checks.run_in_the_way(request, paths)
        for task in varied:
            folder = str(task.value("--output-dir"))
            own = replace(output, absolute=folder, real=os.path.realpath(folder))
            problems += checks.run_in_the_way(task, [own])
    try:
        choice = choose(inputs)
        place = choice.built
        problems += checks.image(place, choice.image.name if choice.image else "", site, force)
    except Unavailable as error:
        if not request.dry_run:
            raise problems[0] if problems else error from None
        problems.append(error)
        assumed = (*inputs.built, *inventory.assumed(settings, inputs.catalog))
        choice = choose(replace(inputs, built=assumed))
    plan = assemble_plan(inputs, choice)
    findings = [*plan.findings, *checks.advice(paths, site)]
    findings += checks.launcher_advice(sys.executable, str(CODE), site)
    one_job = requested.array is None and requested.memory_check and not request.dry_run
    if one_job and not problems and checks.predicts_memory(request, site):

        def make(of_memory: Request) -> Plan:
            on_login_node = replace(
                inputs, request=of_memory, host=here,
                paths=input_files.path_facts(of_memory, inputs.context.folder),
            )  # fmt: skip
            return assemble_plan(on_login_node, replace(choice, gpus=(), selection=None))

        more, unknown = checks.memory(request, what.nodes * what.ranks, site, make)
        problems, findings = problems + more, findings + unknown
    warn(findings)
    content = JobFile(
        format=FORMAT,
        written_by=__version__,
        command=request.command,
        arguments=shared.arguments,
        settings=settings,
        image=job_file.submitted_image(
            plan.engine, choice.image.name if choice.image else None, choice.built
        ),
        site=site.name,
        facts=dict(site.facts),
        gpus=bool(choice.gpus),
        ranks=what.ranks,
        warn_seconds=allocation.warn_seconds(request.command, requested, site),
        requeue=what.requeue,
        force=force,
        tasks=tasks,
        shards=requested.shards or 0,
    )
    return Job(what, site, content, output, part, tuple(problems))


def _grid(file: Path, command: str) -> dict[str, Entry]:
    """Read the file of --array: options that may vary, and their values."""
    known = [name for spec in options_of(command) if spec.role == "value"
             for name in (spec.flag[2:], spec.field)]  # fmt: skip
    found = read_entries(file, "file for --array", known)
    if not found:
        raise ConfigurationError("No array", f"'{file}' is empty", "write `option: [a, b]`")
    return found


def _log(paths: Sequence[PathFact], array: bool) -> str:
    """Return the log beside the output: `%j` is the job's number."""
    fact = next(fact for fact in paths if fact.role == "output")
    if not fact.absolute.isprintable():
        raise UsageError("A path that no job script can hold", repr(fact.absolute), "rename it")
    return fact.absolute.replace("%", "%%") + ("-%A_%a.log" if array else "-%j.log")


def _queue(jobs: Sequence[Job], condition: str) -> int:
    """Queue jobs, each after the one before; keep and print how to follow them."""
    first, numbers = jobs[0], list[str]()
    output = Path(first.output.absolute)
    # Slurm accepts all jobs of an output or none is queued.
    for job in jobs:
        queue.test(job.script())
    with history.reserved(output, first.output.folder, queue.queued) as taken:
        for job in jobs:
            job_file.write(job.content, job.file())
            numbers.append(queue.submit(job.script(), "".join(numbers[-1:]), condition))
            taken[:] = numbers[-1:]
    before, kept = "", list[Path]()
    for job, number in zip(jobs, numbers, strict=True):
        folders = {f"{number}_{k}": place for k, place in enumerate(_places(job, output))}
        kept.append(_keep(job, number, job.script(), folders or {number: str(output)}))
        what = job.allocation
        tasks = f", {what.tasks} tasks" if what.tasks else ""
        print(f"Job {number}: aam {job.content.command}, "
              + (before or f"{what.nodes} x {what.ranks} ranks, "
                 f"{what.time or 'no time limit of its own'}{tasks}"))  # fmt: skip
        before = f"after {'all tasks of ' * bool(tasks)}job {number}"
    log = log_file(first.allocation.log, f"{numbers[0]}_0")
    print(f"follow   tail -F {shlex.quote(log)}\nstate    aam-launch jobs")
    print(f"stop     scancel {' '.join(numbers)}\nscript   {kept[0]}")
    return 0


def _places(job: Job, output: Path) -> list[str]:
    """Return the output of each task of an array; nothing without an array."""
    if shards := job.content.shards:
        table = _table_of(job.content.request({}))
        return [str(Shard(number, shards).file(table)) for number in range(1, shards + 1)]
    if job.content.tasks:
        return [argv[-1] for argv in job.content.tasks]
    return [str(output)] * job.allocation.tasks


def _keep(job: Job, number: str, text: str, folders: dict[str, str]) -> Path:
    """Add a queued job with its script to the history; return the place of the script."""
    entry = history.Submitted(
        job=number,
        name=job.allocation.name,
        command=job.content.command,
        site=job.site.title,
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        log=job.allocation.log,
        folders=folders,
    )
    return history.add(user_folder("XDG_STATE_HOME", os.environ), entry, text)
