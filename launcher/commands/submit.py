"""`aam-launch submit`: check a command as far as the login node can, then queue it as a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aam.contract.errors import AamError, ConfigurationError, Unavailable, UsageError
from aam.contract.options import build, names, options_of, parse_command, parse_known, specs
from aam.contract.shards import Shard, table_of
from aam.contract.yaml_document import Entry, read_entries
from launcher import config, input_files
from launcher.detect import detect
from launcher.documents import user_folder
from launcher.engines import native
from launcher.findings import warn
from launcher.images import inventory, usage
from launcher.options.submit import SubmitOptions, require_printable
from launcher.plan.assembly import assemble_plan
from launcher.plan.decision import decide as choose
from launcher.plan.inputs import LaunchContext, LaunchInputs
from launcher.plan.mounts import PathFact, absolute_paths
from launcher.plan.plan import Plan
from launcher.plan.request import Request, request_of
from launcher.planning import requested_mounts
from launcher.slurm import checks, decide, history, memory, queue
from launcher.slurm.decide import node_of
from launcher.slurm.script import NODE_FOLDER, TRIALS, Job, script, shares_trials
from launcher.slurm.sweep import tasks_of

PLAIN_SITE = "slurm"


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Queue a command of `aam` as a job, or print its script."""
    given, rest = parse_known(specs(SubmitOptions), argv)
    requested = build(SubmitOptions, {**launcher_options, **given})
    require_printable(requested)
    if not [argument for argument in rest if not argument.startswith("--")]:
        raise UsageError("Nothing to submit", "no command is named", "write `submit pretrain ...`")
    request = request_of({k: v for k, v in launcher_options.items() if k != "--gpus"}, rest)
    if not request.paths("output"):
        evidence = f"`{request.command}` has no --output"
        raise UsageError("A job needs an output", evidence, "name a file for it")
    task, last = _task_and_last(request, requested)
    job, paths, problems = decided(task, requested)
    dependent = None
    if last is not None:
        dependent, _, more = decided(last, replace(requested, shards=None, array_tasks=None))
        problems += more
    if request.dry_run:
        for problem in dict.fromkeys(map(str, problems)):
            print(f"aam-launch: warning: {problem}", file=sys.stderr)
        print(script(job), end="")
        return 0
    if problems:
        raise problems[0]
    return _queue(job, dependent, request, paths)


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


def decided(
    request: Request, requested: SubmitOptions
) -> tuple[Job, tuple[PathFact, ...], list[AamError]]:
    """Return the job, its paths and the problems that keep it from running.

    Raises:
        AamError: no plan can be made.
    """
    folder = os.getcwd()
    settings = config.read(request.launcher_options, os.environ)
    catalog = config.catalog(settings)
    name = settings.text("site") or PLAIN_SITE
    site = config.site(name)
    force = request.force
    paths = input_files.path_facts(request, folder)
    shared = absolute_paths(request, paths)
    tasks: tuple[tuple[str, ...], ...] = ()
    if requested.array is not None:
        shared, tasks = tasks_of(shared, _grid(requested.array, request.command))
    number = requested.shards or requested.array_tasks or len(tasks)
    log = _log(paths, bool(number))
    # Of the tasks of an array one may compute with the network, by the members that it has.
    varied = (replace(request, given={**request.given, **parse_command(request.command, task,
              incomplete=True)}) for task in tasks)  # fmt: skip
    planned = next((task for task in varied if task.uses_network), request)
    what = decide.allocation(planned, requested, site, log, number)
    here = detect()
    node = node_of(site, here, what.ranks)
    available = inventory.built(settings, catalog)
    catalog = inventory.measured(catalog, available, settings.text("runtime"))
    problems: list[AamError] = []
    problems += decide.over_limits(what, site) if not force else []
    problems += checks.files(request, paths, site)
    problems += checks.run_in_the_way(request, paths)
    mounts = requested_mounts(settings)
    context = LaunchContext(folder, NODE_FOLDER, os.path.expanduser("~"), False, mounts)
    inputs = LaunchInputs(
        planned, node, catalog, settings, available, native.detect_stack(), context, paths
    )
    try:
        choice = choose(inputs)
        place = choice.built
        problems += checks.image(place, choice.image.name if choice.image else "", site, force)
    except Unavailable as error:
        if not request.dry_run:
            raise problems[0] if problems else error from None
        problems.append(error)
        assumed = (*available, *inventory.assumed(settings, catalog))
        choice = choose(replace(inputs, built=assumed))
    plan = assemble_plan(inputs, choice)
    findings = [*plan.findings, *checks.advice(paths, site)]
    one_job = requested.array is None and requested.memory_check and not request.dry_run
    if one_job and not problems and memory.predicts(request, site):

        def make(of_memory: Request) -> Plan:
            private = config.private_folder(settings, os.getuid(), here.name, None)
            on_login_node = replace(
                inputs, request=of_memory, host=here, context=replace(context, private=private),
                paths=input_files.path_facts(of_memory, folder),
            )  # fmt: skip
            return assemble_plan(on_login_node, replace(choice, gpus=(), selection=None))

        more, unknown = memory.check(request, what.nodes * what.ranks, site, make)
        problems, findings = problems + more, findings + unknown
    warn(findings)
    program = decide.program(plan, request.command, shared.arguments, tasks, paths, settings, site)
    state = checks.image_state(program.image)
    program = replace(program, image_state=state, shards=requested.shards or 0)
    decide.require_scriptable(site)
    warn_seconds = decide.warn_seconds(request.command, requested, site)
    return Job(what, program, site, warn_seconds), paths, problems


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


def _queue(job: Job, dependent: Job | None, request: Request, paths: Sequence[PathFact]) -> int:
    """Queue a job, and the one after all tasks of its array; keep and print how to follow them."""
    fact = next(fact for fact in paths if fact.role == "output")
    output = Path(fact.absolute)
    reservation = str(history.reservation(output, fact.folder))
    job = replace(job, program=replace(job.program, reservation=reservation))
    text = script(job)
    queue.test(text)
    with history.reserved(output, fact.folder, queue.queued()) as taken:
        number = queue.submit(text)
        taken.append(number)
        last = queue.submit(script(dependent), after=number) if dependent is not None else ""
    if job.program.use_record:
        usage.note(job.program.use_record)
    folders = {f"{number}_{k}": place for k, place in enumerate(_places(job, request, output))}
    kept = _keep(job, number, request.command, folders or {number: str(output)})
    if dependent is not None:
        _keep(dependent, last, dependent.program.command, {last: str(output)})
    log = _log_of(job, number)
    tasks = f", {job.allocation.tasks} tasks" if job.allocation.tasks else ""
    print(f"Job {number}: aam {request.command}, {job.allocation.nodes} x {job.allocation.ranks} "
          f"ranks, {job.allocation.time or 'no time limit of its own'}{tasks}")  # fmt: skip
    if dependent is not None:
        print(f"Job {last}: aam {dependent.program.command}, after all tasks of job {number}")
    print(f"follow   tail -F {log.replace('%a', '0')}\nstate    aam-launch jobs")
    print(f"stop     scancel {number}\nscript   {kept}")
    return 0


def _places(job: Job, request: Request, output: Path) -> list[str]:
    """Return the output of each task of an array; nothing without an array."""
    if shards := job.program.shards:
        table = _table_of(request)
        return [str(Shard(number, shards).file(table)) for number in range(1, shards + 1)]
    if job.program.sweep:
        return [argv[-1] for argv in job.program.sweep]
    return [str(output)] * job.allocation.tasks


def _log_of(job: Job, number: str) -> str:
    """Return the log of a queued job; `%a` stands for the task of an array."""
    return job.allocation.log.replace("%j", number).replace("%A", number).replace("%%", "%")


def _keep(job: Job, number: str, command: str, folders: dict[str, str]) -> Path:
    """Add a queued job to the history; return the place of its script."""
    entry = history.Submitted(
        job=number,
        name=job.allocation.name,
        command=command,
        site=job.site.title,
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        log=_log_of(job, number),
        folders=folders,
    )
    return history.add(user_folder("XDG_STATE_HOME", os.environ), entry, script(job))
