"""Steps of a job on a node: `prepare` and `finish` once for each node, `run` once for each rank."""

from __future__ import annotations

import csv
import fcntl
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from aam.contract import stop_file
from aam.contract.errors import AamError, CannotCreate, Interrupted, UsageError
from aam.contract.gpus import GPU, VENDORS
from aam.contract.json_files import read_json
from aam.node import log, stop, topology
from aam.node.commands import NodeCommand, read, require_inputs, resumed
from aam.node.settings import SHARED_RUN, Settings
from aam.node.staging import checksums, stage
from aam.node.sync import Mirror, restore, update_patiently

STRATEGIES = ("--distributed", "--fsdp", "--data-parallel")


def prepare(settings: Settings, argv: Sequence[str], variables: Mapping[str, str]) -> None:
    """Check a node and its inputs, stage them, restore the run, and write the list of mounts.

    Raises:
        AamError: the job cannot run; the first second shows it.
    """
    command = read(argv, settings.directory)
    if settings.vendor and command.computes_on_gpu:
        topology.require_gpus(VENDORS[settings.vendor], settings.ranks)
    require_inputs(command)
    folder = settings.node_folder
    for value in variables.values():  # HOME and caches
        if value.startswith(f"{folder}/"):
            Path(value).mkdir(parents=True, exist_ok=True)
    for _, path in command.paths("output"):
        place = path if command.writes_folder else path.parent
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            evidence = f"'{place}' on {os.uname().nodename}, {error.strerror}"
            remedy = "choose a folder that all nodes see"
            raise CannotCreate("The output folder cannot be made", evidence, remedy) from error
    if not settings.native:
        with _locked(folder):
            _fill(settings, command)
    if _first_node(variables):
        (folder / "mounts").write_text(
            "".join(f"{option}\n" for option in mounts(settings, command))
        )


def _fill(settings: Settings, command: NodeCommand) -> None:
    """Stage the inputs and restore the run folder."""
    (settings.node_folder / "staged").mkdir(exist_ok=True)
    paths = staged_inputs(command)
    copies = {path: settings.staged(number) for number, path in enumerate(paths)}
    for copy in copies.values():
        if copy.is_symlink():
            copy.unlink()
    digests = checksums(paths, settings.stage_gb) if settings.stage_gb else {}
    copied = stage(digests, copies)
    for path, copy in copies.items():
        if not copied or path not in digests:
            copy.unlink(missing_ok=True)
            copy.symlink_to(path)
    if settings.is_local(command) and command.run_folder is not None:
        restore(command.run_folder, settings.local_run)


def staged_inputs(command: NodeCommand) -> list[Path]:
    """Return the input files that a copy on the node stands for."""
    run = command.run_folder
    return [path for path in dict.fromkeys(path for _, path in command.paths("input"))
            if path.is_file() and not (run and run in path.parents)]  # fmt: skip


def mounts(settings: Settings, command: NodeCommand) -> list[str]:
    """Return the options of the engine for what the step `run` sees of the host.

    A copy is mounted at the path of its original, so that records and messages name the original.
    It replaces the mount of the original: of two at one place Apptainer takes the first.
    """
    if settings.native:
        return []
    host = settings.host_folder
    found: dict[str, str] = {}
    if settings.stage_gb:
        for number, path in enumerate(staged_inputs(command)):
            found[str(path)] = _mount(host / "staged" / str(number), path, "ro")
    if settings.is_local(command) and command.run_folder is not None:
        found[str(SHARED_RUN)] = _mount(command.run_folder.resolve(), SHARED_RUN)
        found[str(command.run_folder)] = _mount(host / "run", command.run_folder)
    kept = [value for value in settings.mounts if _target(value) not in found]
    return [argument for value in (*kept, *found.values()) for argument in ("--mount", value)]


def _mount(source: Path, target: Path, *more: str) -> str:
    """Return a value of --mount, whose fields are read as CSV."""
    if any("\n" in str(path) or "\r" in str(path) for path in (source, target)):
        raise UsageError("A path that no job can mount", repr(str(target)), "rename it")
    text = io.StringIO()
    fields = ["type=bind", f"source={source}", f"destination={target}", *more]
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def _target(value: str) -> str:
    """Return the place of a value of --mount."""
    fields = dict(field.partition("=")[::2] for field in next(csv.reader([value])))
    return fields.get("destination", "")


def run(settings: Settings, argv: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run `aam` as a rank and return its exit status; 0 when it stopped on request.

    A rank that has stopped on request must leave the others the time to do so, and Slurm ends them
    all when one ends with another status.
    """
    command = read(argv, settings.directory)
    first = variables.get("SLURM_PROCID", "0") == "0"
    shared = settings.shared_run(command)
    if shared is not None and _continues(shared, variables):
        command = resumed(command)
    size = int(variables.get("SLURM_STEP_NUM_TASKS") or 1)
    if size > 1 and command.uses_network and not any(command.value(f) for f in STRATEGIES):
        command = command.with_values({"--distributed": True})
    if settings.vendor and command.computes_on_gpu and "--device" not in command.given:
        command = command.with_values({"--device": GPU})
    environment = {**variables, **rank_variables(settings, variables)}
    _bind_cpus(settings, int(variables.get("SLURM_LOCALID", "0")))
    with _child([sys.executable, "-m", "aam.cli", *command.argv], environment, settings) as rank:
        mirror = None
        if first and settings.is_local(command):
            mirror = Mirror(settings.local_run, SHARED_RUN, variables.get("SLURM_JOB_ID", "0"))
        if first:
            _follow(rank.process, settings, mirror)
        status = rank.process.wait()
    status = 128 - status if status < 0 else status
    if mirror is not None:
        with suppress(OSError):  # the step `finish` tries again, and reports it
            mirror.update()
    by_itself = status == Interrupted.status or not rank.terminated
    if status and by_itself and shared is not None:
        with suppress(OSError), status_file(shared, variables).open("x") as stream:
            stream.write(f"{status}\n")
    return 0 if status == Interrupted.status else status


def rank_variables(settings: Settings, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `aam` gets beside those of Slurm.

    Ranks meet at the address of the node that started them, which has rank 0: the address that
    Slurm itself uses, so no name has to be resolved.
    """
    added = {stop_file.VARIABLE: str(settings.stop_file)}
    if address := variables.get("SLURM_LAUNCH_NODE_IPADDR"):
        added["MASTER_ADDR"] = variables.get("MASTER_ADDR", address)
    if threads := variables.get("SLURM_CPUS_PER_TASK"):
        added["OMP_NUM_THREADS"] = variables.get("OMP_NUM_THREADS", threads)
    if int(variables.get("SLURM_NNODES") or 1) > 1:
        given = dict(entry.partition("=")[::2] for entry in settings.variables)
        added |= {name: variables.get(name, value) for name, value in given.items()}
        added |= topology.network(variables, settings.interfaces, settings.plugin)
    return added


def _bind_cpus(settings: Settings, rank: int) -> None:
    """Bind this process, and so its child, to the CPUs near its GPU."""
    if settings.vendor and settings.whole_nodes and settings.ranks > 1:
        found = VENDORS[settings.vendor].addresses(Path("/"))
        near = topology.cpus_near(found[rank]) if rank < len(found) else set()
        if near:
            with suppress(OSError):  # Slurm has confined the rank to others
                os.sched_setaffinity(0, near)


@dataclass
class _Rank:
    """`aam` as a child process, and whether this process was signalled to end it."""

    process: subprocess.Popen[bytes]
    terminated: bool = False


@contextmanager
def _child(
    argv: Sequence[str], variables: Mapping[str, str], settings: Settings
) -> Iterator[_Rank]:
    """Start a process; SIGTERM is passed on to it."""
    process = subprocess.Popen(argv, env=dict(variables), cwd=settings.node_folder)
    rank = _Rank(process)

    def terminate(number: int, frame: FrameType | None) -> None:
        rank.terminated = True
        process.send_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield rank
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow(process: subprocess.Popen[bytes], settings: Settings, mirror: Mirror | None) -> None:
    """Watch the time limit and copy the run folder until `aam` ends."""
    warned = False
    limit = float("inf")
    if settings.warn_seconds and settings.end > time.time():
        limit = stop.stop_time(time.time(), settings.end, settings.warn_seconds)
    due = time.monotonic() + settings.sync_seconds
    while process.poll() is None:
        if time.time() >= limit:
            stop_file.request(settings.stop_file, stop_file.LIMIT)
        if mirror is not None and time.monotonic() >= due:
            try:
                mirror.update()
                warned = False
            except OSError as error:
                if not warned:
                    log(f"The run could not be copied: {error}. "
                        f"Tried again every {settings.sync_seconds:g} s.")  # fmt: skip
                warned = True
            due = time.monotonic() + settings.sync_seconds
        time.sleep(0.2)


def finish(
    settings: Settings, argv: Sequence[str], variables: Mapping[str, str], status: int
) -> int:
    """Copy the run for the last time and return the status of the job.

    Args:
        status: what `srun` returned for the step before.
    """
    if not _first_node(variables):
        return 0
    try:
        command = read(argv, settings.directory)
    except UsageError:  # `prepare` has printed it
        log(f"ended with status {status}")
        return status
    if command.run_folder is not None:
        record = status_file(command.run_folder, variables)
        with suppress(OSError, ValueError):
            status = int(record.read_text())
        record.unlink(missing_ok=True)
    made = stop_file.steps_made(settings.stop_file)
    if (
        settings.is_local(command)
        and command.run_folder is not None
        and settings.local_run.is_dir()
    ):
        job = variables.get("SLURM_JOB_ID", "0")
        try:
            mirror = Mirror(settings.local_run, command.run_folder, job)
            update_patiently(mirror, settings.sync_patience, settings.host_folder / "run")
        except CannotCreate as error:
            log(str(error))
            (settings.node_folder / "keep").touch()
            status = error.status
    reason = stop_file.requested(settings.stop_file)
    status, message = stop.decide(status, reason, made, settings.requeue)
    log(message)
    return status


def status_file(run_folder: Path, variables: Mapping[str, str]) -> Path:
    """Return the file in which the rank that fails first leaves its exit status."""
    return run_folder / f".aam-status-{variables.get('SLURM_JOB_ID', '0')}"


def _continues(run_folder: Path, variables: Mapping[str, str]) -> bool:
    """Whether this start of a job goes on with the run that an earlier start began."""
    if int(variables.get("SLURM_RESTART_COUNT") or 0) == 0:
        return False
    try:
        expected = {"host": {"job": str | None}}
        host = read_json(run_folder / "run.json", expected, "run record")["host"]
    except AamError:
        return False
    return bool(host["job"] == variables.get("SLURM_JOB_ID"))


def _first_node(variables: Mapping[str, str]) -> bool:
    return variables.get("SLURM_NODEID", "0") == "0"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder: two nodes of a test cluster can share a disk."""
    with (folder / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
