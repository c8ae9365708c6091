"""`aam-launch job`: the batch process of a job, and the ranks that it starts with `srun`.

    aam-launch job [--digest SHA256] [--stage GB] [--no-memory-check] OPTIONS COMMAND ...

OPTIONS and COMMAND are the same as in a direct launch by `aam-launch`. Each rank makes the plan of
that launch on its node and replaces itself by `aam`. Slurm sends SIGUSR1 before the time limit: the
ranks save a checkpoint and the job is queued again. SIGUSR2 lets them save and ends the job.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from aam.contract import stop_file
from aam.contract.dataclass import dataclass
from aam.contract.errors import (
    AamError,
    ConfigurationError,
    DataError,
    Interrupted,
    Unavailable,
    UsageError,
)  # fmt: skip
from aam.contract.files import system_error
from aam.contract.gpus import GPU
from aam.contract.options import build, option, specs
from aam.contract.options.command_line import arguments, parse_known
from aam.contract.records import read_json
from launcher import config
from launcher.commands import PROGRAM
from launcher.engines import exec_plan, make_private
from launcher.engines.engine import LIBRARIES
from launcher.findings import REQUESTED, warn
from launcher.host.facts import whole_number
from launcher.launch import gather, plan_launch, require_inputs
from launcher.plan.assembly import STRATEGIES
from launcher.plan.inputs import NATIVE, Request, request_of
from launcher.plan.mounts import Mount
from launcher.plan.settings import LAUNCHER_OPTIONS, PREFIX
from launcher.slurm import checks, log, node, queue
from launcher.slurm.site import PLAIN_SITE, Site

ENV = "AAM_JOB_ENV_"
"""Prefix of the variables in which sbatch passes the values of --env: no file has them."""
SCRATCH = f"{PREFIX}SCRATCH"
REQUEUE, END = "requeue", "end"
"""Content of the stop file: the job continues later, or saves and ends."""
CANCELLED = 128 + signal.SIGTERM
FAILED = re.compile(
    r"srun: error: .*\btasks? [-,0-9]+: (?:Exited with exit code (\d+)|([A-Z][a-z ]+))"
)
SIGNALS = {signal.strsignal(number): int(number) for number in signal.Signals}


@dataclass(frozen=True)
class JobOptions:
    """Options of a job beside the options of a direct launch."""

    rank: bool = option("This process is a rank.", default=False)
    digest: str = option("Digest of the image at the submission.", default="")
    stage: int | None = option("Most GB of inputs to copy to the node.")
    memory_check: bool = option("Predict the memory of a training first.", default=True)


def run(launcher_options: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Run the batch process of a job, or become one of its ranks; return the exit status."""
    job_values, command = parse_known(specs(JobOptions), argv)
    job = build(JobOptions, job_values)
    try:
        request = request_of(with_values(launcher_options, os.environ), command)
        if job.rank:
            rank(job, request)
        launch_words = [*arguments(specs(JobOptions), job_values),
                 *arguments(LAUNCHER_OPTIONS.values(), launcher_options), *command]  # fmt: skip
        return batch(job, request, [*PROGRAM, "job", "--rank", *launch_words])
    except (AamError, OSError) as error:
        refused = error if isinstance(error, AamError) else system_error(error)
        if refused is None:
            raise
        log(f"{os.uname().nodename}: {refused}" if job.rank else str(refused))
        if not job.rank:
            log(f"ended with status {refused.status}")
        return refused.status


def with_values(flags: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the launcher's options with the values of --env from the variables."""
    texts = (f"{name}={variables[ENV + name]}" if ENV + name in variables else name
             for name in flags.get("--env", ()))  # fmt: skip
    return {**flags, "--env": tuple(texts)} if "--env" in flags else dict(flags)


def of_slurm(name: str, variables: Mapping[str, str], absent: int = 1) -> int:
    """Return a number that Slurm states in a variable, or `absent`."""
    text = variables.get(name)
    number = whole_number(text) if text else absent
    if number is None:
        evidence, remedy = f"{name}={text!r}", "unset it; Slurm alone sets it in a job"
        raise ConfigurationError("A variable of Slurm is not a number", evidence, remedy)
    return number


# --- the batch process


def batch(job: JobOptions, request: Request, ranks_argv: Sequence[str]) -> int:
    """Run the ranks of a job and return its exit status; queue it again where that is due."""
    variables, number = os.environ, os.environ.get("SLURM_JOB_ID")
    if not number:
        evidence, remedy = "SLURM_JOB_ID is not set", "`aam-launch submit` queues a job"
        raise UsageError("This process belongs to no job of Slurm", evidence, remedy)
    settings = config.read(request.launcher_options, variables)
    site = config.site(settings.site.value or PLAIN_SITE)
    private = Path(config.private_folder(settings, os.geteuid(), os.uname().nodename, number))
    # What a rank inherits: Slurm may give the processes of a step a TMPDIR of their own.
    variables[SCRATCH] = settings.scratch.value
    variables[stop_file.VARIABLE] = str(private / "stop")
    make_private([str(private.parent)])
    shutil.rmtree(private, ignore_errors=True)
    make_private([str(private.parent), str(private)])
    reasons = {signal.SIGUSR1: REQUEUE, signal.SIGUSR2: END}
    stop, cancelled = private / "stop", False

    def handle(received: int, frame: FrameType | None) -> None:
        nonlocal cancelled
        cancelled = cancelled or received == signal.SIGTERM
        if received != signal.SIGTERM:
            try:
                request_stop(stop, reasons[signal.Signals(received)])
            except OSError as error:  # without the folder of the node the job goes on
                log(f"No stop can be requested: '{stop}', {error.strerror}; the job goes on, and "
                    "its last checkpoint is complete")  # fmt: skip

    for signal_number in (*reasons, signal.SIGTERM):
        signal.signal(signal_number, handle)
    nodes = of_slurm("SLURM_JOB_NUM_NODES", variables)
    ranks = of_slurm("SLURM_NTASKS_PER_NODE", variables)
    start = of_slurm("SLURM_RESTART_COUNT", variables, 0) + 1
    where = variables.get("SLURM_JOB_NODELIST", os.uname().nodename)
    log(f"start {start}, `aam {request.command}` on {where}")
    try:
        if start == 1 and job.memory_check:
            checks.require_memory(request, nodes * ranks, site, PROGRAM)
        start = os.fstat(2).st_size
        status = _srun(nodes, ranks, ranks_argv)
        reason, steps = requested_stop(stop), stop_file.steps_made(stop)
        again, status, message = outcome(first_failure(start) or status, reason, steps, cancelled)
        log(message)
        if nodes > 1 and not cancelled:
            mine = ["find", str(private.parent), "-maxdepth", "1", "-name", f"{number}-*"]
            _srun(nodes, 1, [*mine, "-exec", "rm", "-rf", "{}", "+"])
    finally:
        shutil.rmtree(private, ignore_errors=True)
    if again:
        # Slurm ends this process to queue the job again; that is no cancellation.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        queue.requeue(number)
    return status


def _srun(nodes: int, ranks: int, argv: Sequence[str]) -> int:
    """Start processes on each node of the job; return the highest exit status."""
    cpus = of_slurm("SLURM_CPUS_PER_TASK", os.environ, 0)
    cpus = cpus or max(1, of_slurm("SLURM_CPUS_ON_NODE", os.environ) // ranks)
    # Since Slurm 22.05 srun does not take --cpus-per-task from sbatch. Ranks end at different
    # times, so none is waited for (--wait=0), but a rank that fails ends the others.
    srun = ["srun", "--quiet", "--kill-on-bad-exit=1", "--wait=0", f"--nodes={nodes}",
            f"--ntasks-per-node={ranks}", f"--ntasks={nodes * ranks}",
            f"--cpus-per-task={cpus}"]  # fmt: skip
    # `sbatch --export=NONE` leaves NONE here, and srun would pass no variable to the ranks.
    variables = {**os.environ, "SLURM_EXPORT_ENV": "ALL"}
    try:
        return subprocess.run([*srun, *argv], env=variables, check=False).returncode
    except FileNotFoundError as error:
        evidence = f"none is on PATH on {os.uname().nodename}: {os.environ.get('PATH', '')}"
        raise Unavailable("A job needs Slurm's srun", evidence, "add its folder to PATH") from error


def first_failure(start: int) -> int:
    """Return the status of the rank that failed first, by srun's lines in the log; 0: unknown."""
    if not stat.S_ISREG(os.fstat(2).st_mode):
        return 0
    with suppress(OSError), open("/proc/self/fd/2", "rb") as stream:
        stream.seek(start)
        for line in stream:
            if match := FAILED.match(line.decode(errors="replace")):
                code, name = match.groups()
                return int(code) if code else 128 + SIGNALS.get(name.strip(), signal.SIGKILL)
    return 0


def outcome(status: int, reason: str, steps: int, cancelled: bool) -> tuple[bool, int, str]:
    """Return whether a job is queued again, its exit status, and the last line of its log."""
    if cancelled:
        ended = f"ended with status {CANCELLED}, cancelled"
        return False, CANCELLED, f"{ended}; the last checkpoint is complete"
    # When the first rank of a stopped run ends, Slurm ends the others by a signal.
    stopped = reason and (status == Interrupted.status or (status > 128 and steps))
    if not stopped:
        return False, status, f"ended with status {status}"
    status, ended = Interrupted.status, f"ended with status {Interrupted.status}, stopped"
    if reason == END:
        remedy = "continue with --resume-from auto, a search with its command"
        return False, status, f"{ended} on request; {remedy}"
    if steps < stop_file.MIN_STEPS:
        ended += f" after {steps} optimizer step{'s' * (steps != 1)}; not queued again, because"
        return False, status, f"{ended} it would not get further: give the job more time (--time)"
    return True, status, f"stopped after {steps} optimizer steps; queued again"


# --- a rank


def rank(job: JobOptions, request: Request) -> NoReturn:
    """Replace this process by `aam` as a direct launch on this node would."""
    for name in [name for name in os.environ if name.startswith(ENV)]:
        del os.environ[name]
    settings = config.read(request.launcher_options, os.environ)
    site = config.site(settings.site.value or PLAIN_SITE)
    ranks = of_slurm("SLURM_STEP_NUM_TASKS", os.environ)
    nodes = of_slurm("SLURM_NNODES", os.environ)
    local_rank = of_slurm("SLURM_LOCALID", os.environ, 0)
    node_name, number = os.uname().nodename, os.environ.get("SLURM_JOB_ID")
    private = Path(config.private_folder(settings, os.geteuid(), node_name, number))
    os.environ.update(rank_variables(request, site, nodes, ranks, os.environ))
    request = rank_request(request, site, settings.image.value, nodes, ranks, os.environ)
    try:
        require_inputs(request)
    except AamError as error:
        evidence = f"{error.evidence} on {node_name}"
        raise type(error)(error.cause, evidence, "put it where all nodes see it") from error
    make_private([str(private.parent), str(private)])
    mounts, run = list[Mount](), request.given.get("--output-dir")
    most = site.values.stage_most_gb if job.stage is None else job.stage
    if most and settings.runtime.value != NATIVE:  # where nothing can be mounted
        inputs = [p for _, p in request.paths("input") if run is None or run not in p.parents]
        # A copy is mounted at the path of its original, so that records and messages name that.
        copies = node.stage(inputs, private / "staged", most)
        mounts = [Mount(str(copies[p]), str(p), False, REQUESTED, "job") for p in copies]
    _, plan = plan_launch(gather(request, mounts=mounts), starting=True)
    if job.digest and plan.digest != job.digest:
        cause = "The image has changed since the job was submitted"
        evidence = f"'{plan.place}' is {plan.digest}, it was {job.digest}"
        raise DataError(cause, evidence, "submit the job again")
    if local_rank == 0:  # what the node runs, and how its GPUs differ from the site file
        warn(plan.findings)
        names = [f"{gpu.product} ({gpu.arch})" for gpu in plan.gpus]
        gpus = ", ".join(f"{names.count(product)} x {product}" for product in dict.fromkeys(names))
        image = f"image '{plan.place}'" if plan.place else f"Python '{plan.program}'"
        stated, counts = site.values.arch, f"{ranks // nodes} rank{'s' * (ranks > nodes)}"
        log(f"{node_name}: {plan.engine}, {image}, {counts}, {gpus or 'no GPU'}")
        if stated and plan.gpus and {gpu.arch for gpu in plan.gpus} != {stated}:
            used = "the job uses those above"
            log(f"{node_name}: site {site.name} states GPUs of arch {stated}; {used}")
    # A rank computes on the CPUs of the NUMA node of its GPU.
    binds = site.values.whole_nodes and nodes < ranks <= nodes * len(plan.gpus)
    if binds and (near := node.cpus_near(plan.gpus[local_rank].pci)):
        with suppress(OSError):  # Slurm has confined the rank to others
            os.sched_setaffinity(0, near)
    sys.stdout.flush()
    sys.stderr.flush()
    exec_plan(plan)


def rank_request(
    request: Request, site: Site, image: str, nodes: int, ranks: int, variables: Mapping[str, str]
) -> Request:
    """Return the command of a rank: several ranks train together, a restarted job resumes."""
    if continues(request, variables):
        request = request.with_values({"--resume-from": "auto", "--overwrite": False})
    trains = request.option("--distributed") is not None and request.uses_network
    if ranks > 1 and trains and not any(map(request.value, STRATEGIES)):
        request = request.with_values({"--distributed": True})
    if site.values.vendor and image == "auto" and request.computes_on_gpu:
        # Nothing trains on the CPU of a node with GPUs unless the user requests it.
        request = request.with_values({"--device": request.given.get("--device", GPU)})
    flags: dict[str, Any] = dict(request.launcher_options)
    plugins = [folder for folder in site.values.plugin if nodes > 1 and os.path.isdir(folder)]
    if plugins:
        native = flags.get("--runtime") == NATIVE
        library_path = variables.get("LD_LIBRARY_PATH") if native else LIBRARIES
        paths = ":".join(filter(None, [library_path, *plugins]))
        flags["--env"] = (f"LD_LIBRARY_PATH={paths}", *flags.get("--env", ()))
        flags["--bind"] = (*flags.get("--bind", ()), *plugins)
    return Request(request.command, request.given, flags, wrapped=request.wrapped,
                   program=request.program)  # fmt: skip


def continues(request: Request, variables: Mapping[str, str]) -> bool:
    """Return whether this start goes on with the run that an earlier start of the job began."""
    folder, resumes = request.given.get("--output-dir"), request.option("--resume-from")
    if not of_slurm("SLURM_RESTART_COUNT", variables, 0) or folder is None or resumes is None:
        return False
    with suppress(AamError, KeyError, TypeError):
        record = read_json(folder / "run.json", dict[str, Any], "run record")
        return bool(record["host"]["job"] == variables["SLURM_JOB_ID"])
    return False


def rank_variables(
    request: Request, site: Site, nodes: int, ranks: int, present: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that a rank gets beside Slurm's; variables that are set stay."""
    added: dict[str, str] = {}
    if address := present.get("SLURM_LAUNCH_NODE_IPADDR"):
        added["MASTER_ADDR"] = present.get("MASTER_ADDR", address)
    divides = request.starts_ranks and ranks == 1  # its CPUs among the ranks of its node
    if (threads := present.get("SLURM_CPUS_PER_TASK")) and not divides:
        added["OMP_NUM_THREADS"] = present.get("OMP_NUM_THREADS", threads)
    if nodes > 1:
        values = site.values
        added |= {name: present.get(name, value) for name, value in values.network.items()}
        added |= node.network(present, values.interfaces, values.plugin)
    return added


def request_stop(file: Path, reason: str) -> None:
    """Request a stop, unless the file has a request."""
    with suppress(FileExistsError), file.open("x") as stream:
        stream.write(f"{reason}\n")


def requested_stop(file: Path) -> str:
    """Return the reason of the stop request, or nothing."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
