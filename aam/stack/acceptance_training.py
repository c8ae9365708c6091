"""Parts of the acceptance that train: several ranks, and runs that stop or lose a rank."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.console import duration
from aam.contract.errors import Interrupted
from aam.contract.files import sha256
from aam.environment import read_environment
from aam.stack.acceptance_parts import (
    AcceptancePart,
    Context,
    Measured,
    NotPossible,
    PartFailure,
    PartVerdict,
)
from aam.stack.tune import early_difference
from aam.stack.workload import RunResult, rates, read_steps

MAX_DIFFERENCE = 1e-4
"""Largest relative difference of the losses of several ranks and one process: rounding."""
SLOW_SCALING = 0.5
"""Fraction of linear scaling below which several GPUs are slow."""
ROUNDING = 1e-5
"""Largest difference of losses due to the order of sums (atomic additions of a GPU)."""


@dataclass(frozen=True)
class RankComparison:
    """Comparison of the training of several ranks with one process."""

    ranks: int
    nodes: int
    agree: bool
    difference: float  # largest relative difference of the losses
    samples: float  # samples per second of all ranks
    alone: float  # samples per second of one process
    gpu: bool
    network: list[str]  # NCCL's lines about the network


@dataclass(frozen=True)
class RankComparisons(Measured):
    """Comparisons of several ranks with one process; empty on ranks other than the first."""

    runs: list[RankComparison]

    def verdict(self) -> PartVerdict:
        # Ranks other than the first have no runs.
        verdicts: list[PartVerdict] = [("as predicted", "See rank 0.")]
        for run in self.runs:
            limit = f"losses differ by up to {run.difference:.1e}, limit {MAX_DIFFERENCE:.0e}"
            scaling = run.samples / run.alone
            if not run.agree:
                return "wrong", f"{run.ranks} ranks train another network than one: {limit}."
            if run.gpu and scaling < SLOW_SCALING * run.ranks:
                network = "".join(f" ({line})" for line in run.network[:1])
                sentence = f"{run.ranks} ranks are {scaling:.2f} times as fast as one{network}."
                verdicts.append(("slower", sentence))
            else:
                sentence = f"{run.ranks} ranks: {limit}; {scaling:.2f} times as fast as one."
                verdicts.append(("as predicted", sentence))
        return next((verdict for verdict in verdicts if verdict[0] == "slower"), verdicts[-1])


_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def measure_ranks(context: Context) -> RankComparisons:
    """Train with the ranks of the job, or with 2, 4 and 8 ranks on this node, and with one."""
    job, available = read_environment(os.environ), context.gpus if context.gpu else 2
    numbers = [number for number in (2, 4, 8) if number <= available]
    if job.world_size > 1:
        numbers = [job.world_size]
    if not numbers:
        raise NotPossible("There is one GPU.")
    log = context.folder / "collectives.txt"
    # Without dropout: its random numbers depend on the rank.
    options = ("--epochs", 1 if context.small else 3, "--dropout", 0.0, "--overwrite")
    network = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}

    def run(
        name: str, *more: object, without: Collection[str] = ()
    ) -> tuple[RunResult, list[float]]:
        """Train; return the steps and the losses of the epochs."""
        folder, steps = context.folder / name, context.folder / f"{name}-{context.rank}.jsonl"
        command = (*context.pretraining(), *options, "--output-dir", folder, *more)
        context.aam(*command, variables=network, without=without, steps=steps)
        if context.rank:  # the first rank writes and compares
            return RunResult(()), []
        with (folder / "metrics.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        losses = [float(row[name]) for row in rows for name in ("train_loss", "val_loss")]
        return RunResult(*read_steps(steps)), losses

    together = []
    for number in numbers:
        ranks = () if job.world_size > 1 else ("--processes", number)
        # The ranks share a run folder: they compare their options.
        together.append(run(f"ranks-{number}", "--distributed", *ranks))
    if context.rank:
        return RankComparisons([])
    single, single_losses = run("one", without=_RANK_VARIABLES)
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = re.findall(r"NCCL INFO (.*(?:NET/|Using network).*)", text)
    warmup, runs = 2 if context.small else 5, []
    for number, (steps, losses) in zip(numbers, together, strict=True):
        difference = early_difference(losses, single_losses)
        runs.append(RankComparison(
            ranks=number,
            nodes=-(-job.world_size // job.local_world_size),
            agree=len(losses) == len(single_losses) > 0 and difference <= MAX_DIFFERENCE,
            difference=difference,
            samples=rates([steps], warmup).samples,
            alone=rates([single], warmup).samples,
            gpu=context.gpu,
            network=[line.strip()[:300] for line in dict.fromkeys(lines)][:6],
        ))  # fmt: skip
    return RankComparisons(runs, rates={f"{run.ranks} ranks": run.samples for run in runs})


@dataclass(frozen=True)
class Interruptions(Measured):
    """Results of a run that was stopped and resumed, and of a run with a killed rank."""

    stop_status: int
    resume_status: int
    equal: bool  # whether the weights are byte-equal
    difference: float  # largest relative difference of the losses
    rank_status: int
    rank_named: bool
    rank_seconds: float  # seconds from the end of the rank to the end of the run

    def verdict(self) -> PartVerdict:
        rounding = f"losses of the resumed run differ by up to {self.difference:.1e}"
        status = f"a run with a killed rank ended with status {self.rank_status}"
        holds = {
            f"a stopped run ended with status {self.stop_status}":
                self.stop_status == Interrupted.status,
            f"the resumed run ended with status {self.resume_status}": self.resume_status == 0,
            rounding: self.equal or self.difference <= ROUNDING,
            status: self.rank_status == 128 + signal.SIGKILL,
            "the killed rank was not named": self.rank_named,
        }  # fmt: skip
        if wrong := "; ".join(sentence for sentence, right in holds.items() if not right):
            return "wrong", f"{wrong[0].upper()}{wrong[1:]}."
        seconds = f"a run with a killed rank names it and ends in {duration(self.rank_seconds)}"
        if not self.equal:
            sentence = f"Equal up to rounding ({self.difference:.0e}), as its sums have no order"
            return "not possible here", f"{sentence}; {seconds}."
        return "as predicted", f"Stopped and resumed bit for bit; {seconds}."


def measure_interruption(context: Context) -> Interruptions:
    """Stop a run by SIGTERM and resume it; kill a rank of another run."""

    def train(name: str, *options: object, **settings: Any) -> tuple[Any, list[float]]:
        """Train; return output and status of the command, and the losses."""
        folder, steps = context.folder / name, context.folder / f"{name}.jsonl"
        command = (*context.pretraining(), "--epochs", 2, "--output-dir", folder, *options)
        return context.aam(*command, steps=steps, **settings), RunResult(*read_steps(steps)).losses

    killed: list[float] = []

    def kill_second_rank(process: subprocess.Popen[bytes]) -> None:
        # The second rank has its number and the log of this run in its environment.
        mark = {b"RANK=1", f"AAM_STEP_LOG={context.folder / 'killed.jsonl'}".encode()}
        pids = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # the process has ended, or belongs to another user
                if mark <= set(file.read_bytes().split(b"\0")):
                    pids.append(int(file.parent.name))
        if not pids:
            raise PartFailure("no process of rank 1")
        os.kill(min(pids), signal.SIGKILL)
        killed.append(time.monotonic())

    _, losses = train("whole", "--overwrite")
    terminate = subprocess.Popen.terminate
    stopped, _ = train("stopped", "--overwrite", accept=(), act_after=3, act=terminate)
    resumed, resumed_losses = train("stopped", "--resume-from", "auto", accept=())
    weights = [context.folder / f"{n}/model/transformer.safetensors" for n in ("whole", "stopped")]
    equal = all(file.is_file() for file in weights) and len(set(map(sha256, weights))) == 1
    # NCCL refuses two ranks on one GPU.
    device = context.device if context.gpus >= 2 else "cpu"
    options = ("--overwrite", "--processes", 2, "--distributed", "--device", device)
    settings = {"accept": (), "act_after": 2, "act": kill_second_rank}
    broken, _ = train("killed", *options, "--rank-timeout", 10, **settings)
    return Interruptions(
        stop_status=stopped.returncode,
        resume_status=resumed.returncode,
        equal=resumed.returncode == 0 and equal,
        difference=early_difference(resumed_losses, losses[-len(resumed_losses) :]),
        rank_status=broken.returncode,
        rank_named="rank 1 was killed by SIGKILL" in broken.stderr,
        rank_seconds=time.monotonic() - killed[0],
    )


PARTS = {
    "ranks": AcceptancePart("several processes on this node", 1200, measure_ranks),
    "interruption": AcceptancePart("stop, resume, and a killed rank", 900, measure_interruption),
    "nodes": AcceptancePart("several processes on several nodes", 1200, measure_ranks),
}
