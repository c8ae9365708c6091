"""Environment of a rank: rank, world size and rendezvous address, from torchrun or srun.

Reads variables only: nothing is started and no process group is made here. Why no library does it:
docs/decisions/0009-what-distributed-takes-from-libraries.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aam.contract.errors import UsageError
from aam.contract.options.groups import RankOptions, ScaleOptions

_PORTS = (15_000, 20_000)
"""First port for the rendezvous of Slurm steps, and number of ports; below ephemeral ports."""

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID",
          "SLURM_NODEID", "SLURM_STEP_ID")  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """Rank of this process in its run."""

    rank: int = 0  # number among all processes, from 0
    world_size: int = 1  # number of all processes
    local_rank: int = 0  # number among the processes of this node, from 0
    local_world_size: int = 1  # number of processes on this node
    main_address: str = "127.0.0.1"  # host of the store on rank 0; its port is `main_port`
    main_port: int = 0
    launcher: str = ""  # program that started the processes, for messages

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the rank that prints and writes files."""
        return self.rank == 0

    def shard(self, number: int) -> slice:
        """Return this rank's shard of `number` items; the shards of all ranks are disjoint.

        >>> Ranks(rank=1, world_size=4).shard(10)
        slice(3, 6, None)
        """
        return even_slice(number, self.world_size, self.rank)


SINGLE_RANK = Ranks()

T = TypeVar("T")


class RankGroup:
    """Collectives of the ranks of a run; here for a single process, without PyTorch."""

    ranks: Ranks = SINGLE_RANK

    def barrier(self) -> None:
        """Wait for all ranks."""

    def broadcast(self, value: T) -> T:
        """Broadcast the value of rank 0."""
        return value


ONE_PROCESS = RankGroup()


def shard_sizes(number: int, world_size: int) -> tuple[int, ...]:
    """Return the shard size of each rank (`Ranks.shard`).

    >>> shard_sizes(10, 4)
    (3, 3, 2, 2)
    """
    cuts = (even_slice(number, world_size, rank) for rank in range(world_size))
    return tuple(cut.stop - cut.start for cut in cuts)


def read_environment(variables: Mapping[str, str]) -> Ranks:
    """Read rank and world size from the variables of torchrun or srun; else a single rank.

    >>> slurm = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}
    >>> slurm |= {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
    >>> slurm |= {"SLURM_NODEID": "1"}
    >>> ranks = read_environment(slurm | {"SLURM_STEP_NODELIST": "gpu[1-2]"})
    >>> ranks.rank, ranks.world_size, ranks.local_world_size, ranks.main_address
    (2, 3, 1, 'gpu1')
    """
    inconsistent = "The environment of this rank is inconsistent"
    # torchrun first: within a Slurm job it starts the ranks, and SLURM_* describe torchrun itself.
    if "RANK" in variables and "WORLD_SIZE" in variables:
        complete = {"LOCAL_WORLD_SIZE": variables["WORLD_SIZE"], **variables}
        remedy = "start it with torchrun, srun or `aam-launch --gpus`"
        numbers = _numbers(complete, _TORCHRUN, remedy, ("MASTER_ADDR",))
        rank, size, local_rank, local_size, port = numbers
        address, launcher = variables["MASTER_ADDR"], variables.get("AAM_STARTED_BY", "torchrun")
    else:
        # Variables of the step: a batch script has SLURM_NTASKS too, but is one process.
        if not is_started_with_ranks(variables):
            return SINGLE_RANK
        complete = {"SLURM_NODEID": "0", "SLURM_STEP_ID": "0", **variables}
        numbers = _numbers(complete, _SLURM, "pass the variables of srun on")
        rank, size, local_rank, job, node, step = numbers
        of_nodes = tasks_per_node(variables.get("SLURM_STEP_TASKS_PER_NODE", str(size)))
        if node >= len(of_nodes):
            plural = "s" * (len(of_nodes) > 1)
            evidence = f"SLURM_NODEID={node}, tasks on {len(of_nodes)} node{plural}"
            raise UsageError(inconsistent, evidence, "start it again")
        nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
        address = variables.get("MASTER_ADDR") or first_node(nodes or "localhost")
        # The port depends on the step: two steps of a job may share a node.
        free = str(_PORTS[0] + (job * 16 + step) % _PORTS[1])
        chosen = {"MASTER_PORT": variables.get("MASTER_PORT") or free}
        (port,) = _numbers(chosen, ("MASTER_PORT",), "")
        local_size, launcher = of_nodes[node], "srun"
    if not (rank < size and local_rank < local_size <= size):
        evidence = f"rank {rank} of {size}, local rank {local_rank} of {local_size}"
        raise UsageError(inconsistent, evidence, "start it again; ranks begin at 0")
    return Ranks(rank, size, local_rank, local_size, address, port, launcher)


def is_started_with_ranks(variables: Mapping[str, str]) -> bool:
    """Return whether torchrun, or srun with several tasks, started this process."""
    tasks = variables.get("SLURM_STEP_NUM_TASKS") or "1"
    return "RANK" in variables or tasks not in ("0", "1")


def check_options(scale: RankOptions, ranks: Ranks, batch_size: int | None) -> None:
    """Refuse options of parallel training that contradict the world size."""
    if not isinstance(scale, ScaleOptions):
        return  # the ranks of a prediction share no batch
    chosen = scale.distributed or scale.fsdp or scale.data_parallel
    if ranks.world_size > 1 and not chosen:
        raise UsageError(
            f"{ranks.launcher} started {ranks.world_size} processes that would all do the same",
            "neither --distributed nor --fsdp was given",
            "add one of them, or start one process",
        )
    if scale.data_parallel and ranks.world_size > ranks.local_world_size:
        raise UsageError(
            "--data-parallel is for one node",
            f"{ranks.world_size} processes, {ranks.local_world_size} on this node",
            "use --distributed",
        )
    if batch_size is not None and batch_size < ranks.world_size:
        raise UsageError(
            "Fewer samples in a batch than processes",
            f"--batch-size {batch_size}, {ranks.world_size} processes",
            "choose a larger --batch-size (samples of all processes), or start fewer processes",
        )


def first_node(nodes: str) -> str:
    """Parse the first node of Slurm's short form of a list.

    >>> first_node("gpu[003-007,12],login1"), first_node("node-1,node-2")
    ('gpu003', 'node-1')
    """
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes).split(",")[0].strip()


def tasks_per_node(tasks: str) -> list[int]:
    """Parse the number of tasks of each node from Slurm's short form.

    >>> tasks_per_node("4(x2),1")
    [4, 4, 1]
    """
    counts: list[int] = []
    for entry in tasks.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry)
        if match is None:
            evidence = f"SLURM_STEP_TASKS_PER_NODE='{tasks}'"
            raise UsageError("Tasks of nodes that cannot be read", evidence, "start it again")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _numbers(
    variables: Mapping[str, str], names: Sequence[str], remedy: str, texts: Sequence[str] = ()
) -> list[int]:
    """Parse numeric variables; the variables in `texts` are only required."""
    if missing := [name for name in (*names, *texts) if name not in variables]:
        evidence = f"{', '.join(missing)} is not set"
        raise UsageError("The environment of this rank is incomplete", evidence, remedy)
    wrong = [f"{name}='{variables[name]}'" for name in names if not variables[name].isdecimal()]
    if wrong:
        cause = "Variables of the environment are not numbers"
        raise UsageError(cause, ", ".join(wrong), "start it again")
    return [int(variables[name]) for name in names]


def even_slice(samples: int, steps: int, step: int) -> slice:
    """Return slice number `step` of `steps` consecutive slices of nearly equal size.

    Sizes differ by at most one; larger slices come first.

    >>> [even_slice(5, 2, step) for step in range(2)]
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size, larger = divmod(samples, steps)
    start = step * size + min(step, larger)
    return slice(start, start + size + (step < larger))
