"""Rank of a job: the process that `srun` starts for each GPU of a node.

The first rank of a node checks it, stages the inputs, restores the run and waits for the other
nodes; its other ranks wait for it. Then each rank makes the plan of a direct launch for what its
node has, and runs it as a child process. Rank 0 also copies the run folder and watches the time.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from aam.contract import stop_file
from aam.contract.errors import CannotCreate, Interrupted, MissingInput, Unavailable
from aam.contract.files import write_json
from aam.contract.gpus import GPU
from aam.contract.json_files import read_json
from launcher import input_files
from launcher.detect import detect
from launcher.engines import start_plan
from launcher.engines.base import LIBRARIES
from launcher.engines.folders import make_outputs, make_private
from launcher.findings import REQUESTED, warn
from launcher.plan.assembly import STRATEGIES
from launcher.plan.mounts import Mount
from launcher.plan.plan import Plan
from launcher.plan.request import Request
from launcher.planning import plan_launch
from launcher.slurm import log, queue, topology
from launcher.slurm.job_file import require_image
from launcher.slurm.staging import checksums, stage
from launcher.slurm.sync import Mirror, restore
from launcher.slurm.task import Task

READY = {"copies": dict[str, str], "plan": dict[str, Any]}
"""Schema of the facts that the first rank of a node leaves for the others."""


def run(task: Task) -> int:
    """Run `aam` as a rank and return its exit status; 0 when it stopped on request.

    A rank that has stopped on request must leave the others the time to do so, and Slurm ends them
    all when one ends with another status.

    Raises:
        AamError: the node, an input or the image is not as the job needs it.
    """
    present = rank_variables(task, os.environ)
    os.environ.update(present)
    request = rank_request(task)
    # Once a node: all its ranks read the same copies, and each would read the disk for its own.
    if task.local_rank == 0:
        copies = _prepare(task, request)
        plan = _plan(task, request, copies)
        _say(task, plan)
        # A difference between nodes is refused before any rank starts: ranks that are in a
        # collective already would wait for one that never comes.
        write_json(task.shared / f"node-{task.node}", summary(plan))
        _wait_for_nodes(task)
        write_json(task.ready_file, {"copies": copies, "plan": summary(plan)})
    else:
        wait_for([task.ready_file])
        ready = read_json(task.ready_file, READY, "record of the node")
        plan = _plan(task, request, ready["copies"])
        require_same(summary(plan), ready["plan"], f"rank {task.rank}", "the first of its node")
    _bind_cpus(task, plan)
    with _child(plan) as rank:
        mirror = None
        if task.first and task.local_run and task.run_folder:
            mirror = Mirror(task.local_run, task.run_folder, task.number)
        if task.first:
            _follow(rank.process, task, mirror)
        status = rank.process.wait()
    # Popen has the number of a signal as a negative status, a shell adds it to 128.
    status = 128 - status if status < 0 else status
    if mirror is not None:
        with suppress(OSError):  # the end of the job tries again, and reports it
            mirror.update()
    # A rank that Slurm ended because another one failed is not the cause.
    if status and (status == Interrupted.status or not rank.terminated):
        leave_status(task, status)
    return 0 if status == Interrupted.status else status


def leave_status(task: Task, status: int) -> None:
    """Leave the exit status of the rank that fails first."""
    # "x" creates the file: of ranks that fail together one leaves its status.
    with suppress(OSError), task.status_file.open("x") as stream:
        stream.write(f"{status}\n")


def rank_request(task: Task) -> Request:
    """Return the command that a rank runs: several ranks train together, a restart resumes."""
    request = task.request
    if task.continues:
        request = request.with_values({"--resume-from": "auto", "--overwrite": False})
    if task.size > 1 and request.uses_network and not any(map(request.value, STRATEGIES)):
        request = request.with_values({"--distributed": True})
    if task.job.gpus and request.computes_on_gpu:
        # Nothing trains on the processor of a node with GPUs unless the user asks for it.
        request = request.with_values({"--device": request.given.get("--device", GPU)})
    return request


def rank_variables(task: Task, present: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a rank gets beside those of Slurm.

    Ranks meet at the address of the node that started them, which has rank 0: the address that
    Slurm itself uses, so no name has to be resolved.
    """
    site = task.job.of_site
    added = {stop_file.VARIABLE: str(task.stop_file)}
    if address := present.get("SLURM_LAUNCH_NODE_IPADDR"):
        added["MASTER_ADDR"] = present.get("MASTER_ADDR", address)
    divides = task.request.starts_ranks and task.size == 1  # its CPUs among the ranks of its node
    if (threads := present.get("SLURM_CPUS_PER_TASK")) and not divides:
        added["OMP_NUM_THREADS"] = present.get("OMP_NUM_THREADS", threads)
    if task.nodes > 1:
        added |= {name: present.get(name, value) for name, value in site.network.items()}
        added |= topology.network(present, site.strings("interfaces"), _plugins(task))
    return added


def _plugins(task: Task) -> list[Path]:
    """Return the folders of network plugins that this node has."""
    found = map(Path, task.job.of_site.strings("plugin")) if task.nodes > 1 else ()
    return [folder for folder in found if folder.is_dir()]


def _prepare(task: Task, request: Request) -> dict[str, str]:
    """Check the node, stage the inputs and restore the run; return the copies of inputs.

    Raises:
        AamError: the job cannot run; the first second shows it.
    """
    site, host = task.job.of_site, detect()
    make_private([str(task.private.parent), str(task.private)])
    require_image(task.job.image)
    if task.job.gpus and request.computes_on_gpu:
        topology.require_gpus(host, site.text("vendor"), task.size // task.nodes)
    elif request.computes_on_gpu and task.job.chose_image:
        topology.require_no_gpus(host, site.name)
    try:
        input_files.require_inputs(request)
    except MissingInput as error:
        remedy = "put it where all nodes see it"
        raise MissingInput(error.cause, f"{error.evidence} on {host.name}", remedy) from error
    run_folder = task.run_folder
    outputs = [path if spec.field.endswith("dir") else path.parent
               for spec, path in request.paths("output")]  # fmt: skip
    make_outputs(list(map(str, outputs)))
    if not task.job.image.name:
        return {}
    with _locked(task.private):
        copies = _stage(task, request)
        if task.local_run and run_folder:
            restore(run_folder, task.local_run)
    return copies


def _stage(task: Task, request: Request) -> dict[str, str]:
    """Copy the input files to the node; return the copies by path, nothing if they stay."""
    most, run_folder = task.job.of_site.number("stage_most_gb"), task.run_folder
    if not most:
        return {}
    folder = task.private / "staged"
    folder.mkdir(exist_ok=True)
    paths = [path for path in dict.fromkeys(path for _, path in request.paths("input"))
             if path.is_file() and run_folder not in path.parents]  # fmt: skip
    copies = {path: folder / str(number) for number, path in enumerate(paths)}
    if not stage(checksums(paths, most), copies):
        return {}
    log(f"{os.uname().nodename}: {len(paths)} input files are copied to '{folder}'")
    return {str(path): str(copy) for path, copy in copies.items()}


def _plan(task: Task, request: Request, copies: Mapping[str, str]) -> Plan:
    """Return the plan of a direct launch on this node, with the copies in place of the originals.

    A copy is mounted at the path of its original, so that records and messages name the original.
    """
    why, settings, plugins = "job", task.settings, _plugins(task)
    mounts = [Mount(copy, path, False, REQUESTED, why) for path, copy in copies.items()]
    if task.local_run:
        mounts.append(Mount(str(task.local_run), str(task.run_folder), True, REQUESTED, why))
    mounts += [Mount(str(path), str(path), False, REQUESTED, why) for path in plugins]
    if plugins:
        own = [LIBRARIES] if task.job.image.name else [os.environ.get("LD_LIBRARY_PATH", "")]
        paths = ":".join(filter(None, [*own, *map(str, plugins)]))
        library_path = {"LD_LIBRARY_PATH": (paths, f"site {task.job.site}")}
        settings = replace(settings, env={**settings.env, **library_path})
    several = task.size > task.nodes
    _, plan = plan_launch(
        request, starting=True, settings=settings, mounts=mounts, shares_memory=several
    )
    return plan


def summary(plan: Plan) -> dict[str, Any]:
    """Return the facts of a plan that all ranks of a job must share."""
    return {
        "engine": plan.engine,
        "image": plan.digest or plan.place,
        "PyTorch": plan.stack,
        "GPUs": [gpu.arch for gpu in plan.gpus],
        "command": list(plan.argv),
    }


def require_same(found: Mapping[str, Any], first: Mapping[str, Any], who: str, other: str) -> None:
    """Check that two ranks compute with the same stack, GPUs and options.

    Raises:
        Unavailable: names the first difference.
    """
    for key, value in first.items():
        if found.get(key) != value:
            evidence = f"{key} of {who}: {found.get(key)}, of {other}: {value}"
            remedy = "ask Slurm for equal nodes, for example with --constraint"
            raise Unavailable("Two ranks with different plans", evidence, remedy)


def _say(task: Task, plan: Plan) -> None:
    """Print what a node runs, and how its GPUs differ from those that the site states."""
    warn(plan.findings)
    site, names = task.job.of_site, [f"{gpu.product} ({gpu.arch})" for gpu in plan.gpus]
    name, ranks = os.uname().nodename, task.size // task.nodes
    gpus = ", ".join(f"{names.count(each)} x {each}" for each in dict.fromkeys(names)) or "no GPU"
    image = f"image '{plan.place}'" if plan.place else f"Python '{plan.program}'"
    log(f"{name}: {plan.engine}, {image}, {ranks} rank{'s' * (ranks > 1)}, {gpus}")
    for decision in plan.decisions:
        if decision.subject == "left out":
            log(f"{name}: {decision.value} stay idle, {decision.why}")
    stated = site.text("arch")
    if stated and plan.gpus and {gpu.arch for gpu in plan.gpus} != {stated}:
        log(f"{name}: site {site.name} states GPUs of arch {stated}; the job uses those above")


def _wait_for_nodes(task: Task) -> None:
    """Wait until every node is prepared, and compare the plan with that of the first node.

    Raises:
        Unavailable: they differ.
    """
    if task.nodes == 1:
        return
    files = [task.shared / f"node-{number}" for number in range(task.nodes)]
    wait_for(files)
    own, first = (read_json(file, dict[str, Any], "record of a node")
                  for file in (files[task.node], files[0]))  # fmt: skip
    require_same(own, first, os.uname().nodename, "the first node")


def wait_for(files: list[Path]) -> None:
    """Wait until files exist; if the process that makes one fails, Slurm ends this one too."""
    # Polled, since inotify(7) reports no changes that another node makes.
    while not all(file.exists() for file in files):
        time.sleep(0.2)


def _bind_cpus(task: Task, plan: Plan) -> None:
    """Bind this process, and so its child, to the CPUs near its GPU."""
    ranks = task.size // task.nodes
    if task.job.of_site.on("whole_nodes") and 1 < ranks <= len(plan.gpus):
        near = topology.cpus_near(plan.gpus[task.local_rank].pci)
        if near:
            with suppress(OSError):  # Slurm has confined the rank to others
                os.sched_setaffinity(0, near)


@dataclass
class _Rank:
    """`aam` as a child process, and whether this process was signalled to end it."""

    process: subprocess.Popen[bytes]
    terminated: bool = False


@contextmanager
def _child(plan: Plan) -> Iterator[_Rank]:
    """Start the program of a plan; SIGTERM is passed on to it.

    Raises:
        AamError: see `start_plan`.
    """
    process = start_plan(plan, lambda argv, variables: subprocess.Popen(argv, env=variables))
    rank = _Rank(process)

    def terminate(number: int, frame: FrameType | None) -> None:
        rank.terminated = True
        process.send_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield rank
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_time(now: float, end: float, usual: float) -> float:
    """Return when to stop a job that ends at `end`.

    It is `usual` seconds before the end, but never in the first three quarters of the time left.

    >>> stop_time(0, 86400, 600), stop_time(0, 600, 600)
    (85800.0, 450.0)
    """
    return float(end - min(usual, max(0, end - now) / 4))


def _follow(process: subprocess.Popen[bytes], task: Task, mirror: Mirror | None) -> None:
    """Watch the time limit and copy the run folder until `aam` ends."""
    seconds = max(1, task.job.of_site.number("sync_seconds"))
    limit, warned = float("inf"), False
    if task.job.warn_seconds:
        end, now = queue.end_time(os.environ), time.time()
        if end > now:
            limit = stop_time(now, end, task.job.warn_seconds)
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(limit))
            log(f"stops at {at}, before its time limit")
    due = time.monotonic() + seconds
    while process.poll() is None:
        if time.time() >= limit:
            stop_file.request(task.stop_file, stop_file.LIMIT)
        if mirror is not None and time.monotonic() >= due:
            try:
                mirror.update()
                warned = False
            except OSError as error:
                if not warned:
                    log(f"The run could not be copied: {error}. Tried again every {seconds} s.")
                warned = True
            due = time.monotonic() + seconds
        time.sleep(0.2)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder: two nodes of a test cluster can share a disk."""
    try:
        stream = (folder / "lock").open("w")
    except OSError as error:
        evidence = f"'{folder}' on {os.uname().nodename}, {error.strerror}"
        remedy = "ask Slurm for a node with more disk"
        raise CannotCreate("The node has no room for the job", evidence, remedy) from error
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
