"""`aam-launch submit`: check a command as far as the login node can, then queue it as a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from aam.contract.errors import AamError, ConfigurationError, MissingInput, Unavailable, UsageError
from launcher import config, images, input_files
from launcher.detect import detect
from launcher.engines import native
from launcher.explain import warn
from launcher.plan.assembly import assemble_plan
from launcher.plan.engine_plan import LaunchContext
from launcher.plan.gpu_use import gpu_use
from launcher.plan.mounts import PathFact, parse_bind
from launcher.plan.request import Request, options_of, parse
from launcher.plan.selection import choose
from launcher.plan.settings import Entry
from launcher.plan.yaml_document import entries
from launcher.slurm import checks, decide, history, queue
from launcher.slurm.job import Job
from launcher.slurm.node import node_of
from launcher.slurm.script import NODE_FOLDER, script
from launcher.slurm.submit_options import SubmitOptions, split_submit_options
from launcher.slurm.sweep import tasks_of

PLAIN_SITE = "slurm"


def run(argv: Sequence[str]) -> int:
    """Queue a command of `aam` as a job, or print its script."""
    requested, rest = split_submit_options(argv)
    if not [argument for argument in rest if not argument.startswith("--")]:
        raise UsageError("Nothing to submit", "no command is named", "write `submit pretrain ...`")
    request = parse(rest)
    outputs = [argument for argument in request.paths if argument.role == "output"]
    if not outputs:
        evidence = f"`{request.command}` has no --output"
        raise UsageError("A job needs an output", evidence, "name a file for it")
    job, paths, problems = decided(request, requested)
    text = script(job)
    if request.dry_run:
        for problem in problems:
            print(f"aam-launch: warning: {problem}", file=sys.stderr)
        print(text, end="")
        return 0
    if problems:
        raise problems[0]
    return _queue(job, text, request, paths)


def decided(
    request: Request, requested: SubmitOptions
) -> tuple[Job, tuple[PathFact, ...], list[AamError]]:
    """Return the job, its paths and the problems that keep it from running.

    Raises:
        AamError: no plan can be made.
    """
    folder = os.getcwd()
    settings = config.read(request.launcher_options, os.environ, Path(folder))
    catalog = config.catalog(settings)
    name = settings.text("site") or PLAIN_SITE
    site = config.site(name, os.environ)
    force = "--force" in request.launcher_options
    paths = input_files.path_facts(request, folder)
    grid = _grid(requested, request.command)
    absolute = request.with_paths({f.place: f.absolute for f in paths if f.place >= 0})
    shared, tasks = tasks_of(request.command, absolute, grid) if grid else (absolute, ())
    log = _log(paths, bool(tasks))
    what = decide.allocation(request.command, requested, site, log, len(tasks))
    node = node_of(site, detect(), what.ranks)
    available = images.built(settings, catalog)
    catalog = images.measured(catalog, available, settings.text("runtime"))
    assumed = (*available, *images.assumed(settings, catalog))
    problems: list[AamError] = []
    problems += decide.over_limits(what, site) if not force else []
    problems += checks.files(request, paths, site)
    problems += checks.run_in_the_way(request, paths)
    use = gpu_use(request, None)
    try:
        choice = choose(node, catalog, settings, available, native.detect_stack(), force, use)
        place = choice.built
        problems += checks.image(place, choice.image.name if choice.image else "", site, force)
    except Unavailable as error:
        if not request.dry_run:
            raise problems[0] if problems else error from None
        problems.append(error)
        choice = choose(node, catalog, settings, assumed, native.detect_stack(), force, use)
    mounts = tuple(
        parse_bind(text, os.path.exists(text), entry.where)
        for entry in settings.given("bind")
        for text in entry.value
    )
    context = LaunchContext(folder, NODE_FOLDER, os.path.expanduser("~"), False, mounts)
    plan = assemble_plan(
        request, node, choice, catalog, settings, paths, native.detect_stack(), context
    )
    for line in warn((*plan.findings, *checks.advice(paths, site))):
        print(line, file=sys.stderr)
    program = decide.program(plan, shared, tasks, paths, settings, site)
    program = replace(program, image_state=checks.image_state(program.image))
    where = decide.place(site, decide.warn_seconds(request.command, requested, site))
    return Job(what, program, where), paths, problems


def _grid(requested: SubmitOptions, command: str) -> dict[str, Entry]:
    """Read the file of --array: options that may vary, and their values."""
    file = requested.text("--array")
    if not file:
        return {}
    known = [name for spec in options_of(command).values() if spec.role == "value"
             for name in (spec.flag[2:], spec.field)]  # fmt: skip
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise MissingInput("No file for --array", f"'{file}', {error}", "check the path") from error
    found = entries(text, file, known)
    if not found:
        raise ConfigurationError("No array", f"'{file}' is empty", "write `option: [a, b]`")
    return found


def _log(paths: Sequence[PathFact], array: bool) -> str:
    """Return the log beside the output: `%j` is the job's number."""
    fact = next(fact for fact in paths if fact.role == "output")
    if not fact.absolute.isprintable():
        raise UsageError("A path that no job script can hold", repr(fact.absolute), "rename it")
    return fact.absolute.replace("%", "%%") + ("-%A_%a.log" if array else "-%j.log")


def _queue(job: Job, text: str, request: Request, paths: Sequence[PathFact]) -> int:
    queue.test(text)
    fact = next(fact for fact in paths if fact.role == "output")
    output = Path(fact.absolute)
    with history.reserved(output, fact.folder, queue.queued()) as taken:
        number = queue.submit(text)
        taken.append(number)
    tasks = job.program.sweep
    folders = {f"{number}_{k}": argv[-1] for k, argv in enumerate(tasks)}
    log = job.allocation.log.replace("%j", number).replace("%A", number).replace("%%", "%")
    entry = history.Submitted(
        job=number,
        name=job.allocation.name,
        command=request.command,
        site=job.place.title,
        when=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        log=log,
        folders=folders or {number: str(output)},
    )
    kept = history.add(history.state_folder(os.environ), entry, text)
    print(f"Job {number}: aam {request.command}, {job.allocation.nodes} x {job.allocation.ranks} "
          f"ranks, {job.allocation.time or 'no time limit of its own'}"
          + (f", {len(tasks)} tasks" if tasks else ""))  # fmt: skip
    print(f"follow   tail -F {log.replace('%a', '0')}\nstate    aam-launch jobs")
    print(f"stop     scancel {number}\nscript   {kept}")
    return 0
