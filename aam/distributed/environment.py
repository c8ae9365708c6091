"""Rank and world size of this process, as torchrun, srun or `local_ranks` have set them.

Nothing is started and nothing is joined here; torch is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from aam.contract.errors import UsageError
from aam.contract.options.groups import ScaleOptions
from aam.data.batch_balance import even_slice

_PORTS = (15_000, 20_000)
"""First of the ports that Slurm jobs meet on, and their number; below Linux's ephemeral ones."""

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run.

    Attributes:
        rank: its number among all, from 0.
        size: how many there are.
        local_rank: its number on this machine, from 0.
        local_size: how many there are on this machine.
        address, port: where they meet.
        started_by: the program that started them, for messages.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    started_by: str = ""

    @property
    def first(self) -> bool:
        """Whether this is the process that speaks and writes for all."""
        return self.rank == 0

    def portion(self, number: int) -> slice:
        """Return which of `number` things are this process's; all processes' make up the whole."""
        return even_slice(number, self.size, self.rank)


ALONE = Ranks()


def portions(number: int, size: int) -> tuple[int, ...]:
    """Return how many of `number` things each of `size` processes takes."""
    cuts = (even_slice(number, size, rank) for rank in range(size))
    return tuple(cut.stop - cut.start for cut in cuts)


def found(variables: Mapping[str, str]) -> Ranks:
    """Read rank and world size; a single process if nothing sets them.

    torchrun and `local_ranks` set RANK and its like. Under Slurm only a step (`srun`) starts
    several processes; a batch script sees SLURM_NTASKS too, but it is one process.

    Raises:
        UsageError: variables that contradict each other or make no sense.
    """
    if "RANK" in variables and "WORLD_SIZE" in variables:
        missing = [name for name in _TORCHRUN if name not in variables]
        if missing:
            raise UsageError(
                "The process does not know who it is",
                f"RANK is set, {', '.join(missing)} is not",
                "start it with torchrun, srun or `aam-launch --gpus`, or unset RANK",
            )
        local_size = variables.get("LOCAL_WORLD_SIZE", variables["WORLD_SIZE"])
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        rank, size, local_rank, local, port = _numbers(
            [*((n, variables[n]) for n in names), ("LOCAL_WORLD_SIZE", local_size),
             ("MASTER_PORT", variables["MASTER_PORT"])]
        )  # fmt: skip
        by = variables.get("AAM_STARTED_BY", "torchrun")
        return _checked(
            Ranks(rank, size, local_rank, local, variables["MASTER_ADDR"], port, started_by=by)
        )
    if int(variables.get("SLURM_STEP_NUM_TASKS", "1") or 1) > 1:
        return _checked(_of_slurm(variables))
    return ALONE


def check(scale: ScaleOptions, ranks: Ranks, batch_size: int) -> None:
    """Refuse what no set of processes can do.

    Raises:
        UsageError: strategies that exclude each other, several processes without a strategy, or a
            batch of fewer samples than processes.
    """
    chosen = [
        f"--{name.replace('_', '-')}"
        for name in ("distributed", "fsdp", "data_parallel")
        if getattr(scale, name)
    ]
    if len(chosen) > 1:
        raise UsageError("Strategies that exclude each other", " ".join(chosen), "choose one")
    if scale.fsdp_sharded_checkpoint and not scale.fsdp:
        raise UsageError(
            "Nothing is sharded", "--fsdp-sharded-checkpoint without --fsdp", "add --fsdp"
        )
    if ranks.size > 1 and not chosen:
        raise UsageError(
            f"{ranks.started_by} started {ranks.size} processes that would all do the same",
            "neither --distributed nor --fsdp was given",
            "add one of them, or start one process",
        )
    if scale.data_parallel and ranks.size > ranks.local_size:
        raise UsageError(
            "--data-parallel is for one machine",
            f"{ranks.size} processes, {ranks.local_size} on this machine",
            "use --distributed",
        )
    if batch_size < ranks.size:
        raise UsageError(
            "The batch is smaller than the processes",
            f"--batch-size {batch_size}, {ranks.size} processes",
            "choose a larger --batch-size, which is of all processes together, or fewer processes",
        )


def _of_slurm(variables: Mapping[str, str]) -> Ranks:
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID")
    missing = [name for name in names if name not in variables]
    if missing:
        raise UsageError(
            "The process does not know who it is",
            f"srun started it, but {', '.join(missing)} is not set",
            "let the variables of Slurm through",
        )
    rank, size, local_rank, job = _numbers([(name, variables[name]) for name in names])
    tasks = variables.get("SLURM_STEP_TASKS_PER_NODE", str(size))
    node = int(variables.get("SLURM_NODEID", "0"))
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "localhost")
    step = int(variables.get("SLURM_STEP_ID", "0"))
    return Ranks(
        rank,
        size,
        local_rank,
        tasks_on(tasks)[node],
        variables.get("MASTER_ADDR") or first_host(nodes),
        int(variables.get("MASTER_PORT") or _PORTS[0] + (job * 16 + step) % _PORTS[1]),
        started_by="srun",
    )


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's short form of a list of nodes.

    >>> first_host("gpu[03-05,9],login1"), first_host("n1-[007]-ib,n2"), first_host("solo")
    ('gpu03', 'n1-007-ib', 'solo')
    """
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    if match is None:
        raise UsageError("A list of nodes that cannot be read", f"'{nodes}'", "set MASTER_ADDR")
    return "".join(part or "" for part in match.groups())


def tasks_on(tasks: str) -> list[int]:
    """Return the tasks of each node from Slurm's short form.

    >>> tasks_on("4(x2),1")
    [4, 4, 1]
    """
    found: list[int] = []
    for word in tasks.split(","):
        number, _, times = word.partition("(x")
        found += [int(number)] * int(times.rstrip(")") or 1)
    return found


def _numbers(pairs: list[tuple[str, str]]) -> list[int]:
    wrong = [f"{name}='{text}'" for name, text in pairs if not text.isdecimal()]
    if wrong:
        raise UsageError(
            "The process does not know who it is", ", ".join(wrong), "these have to be numbers"
        )
    return [int(text) for _, text in pairs]


def _checked(ranks: Ranks) -> Ranks:
    if not (ranks.rank < ranks.size and ranks.local_rank < ranks.local_size <= ranks.size):
        evidence = (
            f"process {ranks.rank} of {ranks.size}, {ranks.local_rank} of {ranks.local_size} here"
        )
        raise UsageError(
            "The process does not know who it is", evidence, "numbers begin at 0; start it again"
        )
    return ranks
