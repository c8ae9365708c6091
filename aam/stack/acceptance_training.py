"""Parts of the acceptance that train: several ranks, and runs that are stopped or lose a rank."""

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
from aam.stack.acceptance_parts import Context, Measured, NotPossible, PartFailure, Verdict
from aam.stack.tune import early_difference
from aam.stack.workload import RunResult, rates, read_steps

MAX_DIFFERENCE = 1e-4
"""Relative difference of the losses of an epoch from those of one process, which rounding makes."""
SLOW_SCALING = 0.5
"""Samples per second of several GPUs below this share of their number times one are slow."""
ROUNDING = 1e-5
"""Difference of losses that sums in another order make, as atomic additions of a GPU have it."""


@dataclass(frozen=True)
class RankComparison:
    """Training of several ranks, compared with one process."""

    ranks: int
    nodes: int
    agree: bool
    difference: float  # largest relative difference of the losses
    samples: float  # per second of all ranks
    alone: float  # samples per second of one process
    gpu: bool
    network: list[str]  # lines of NCCL about the network that is used


@dataclass(frozen=True)
class RankComparisons(Measured):
    """Trainings of several ranks; none on ranks other than the first."""

    runs: list[RankComparison]


_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def measure_ranks(context: Context) -> RankComparisons:
    """Train with the ranks of the job, or with 2, 4 and 8 on this node, and with one process."""
    job, available = read_environment(os.environ), context.gpus if context.gpu else 2
    numbers = [number for number in (2, 4, 8) if number <= available]
    if job.world_size > 1:
        numbers = [job.world_size]
    if not numbers:
        raise NotPossible("There is one GPU.")
    log = context.folder / "collectives.txt"
    # What dropout draws depends on the rank.
    options = ("--epochs", 1 if context.small else 3, "--dropout", 0.0, "--overwrite")
    network = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}

    def run(
        name: str, *more: object, without: Collection[str] = ()
    ) -> tuple[RunResult, list[float]]:
        """Return the steps and the losses of the epochs."""
        folder, steps = context.folder / name, context.folder / f"{name}-{context.rank}.jsonl"
        words = (*context.pretraining(), *options, "--output-dir", folder, *more)
        context.aam(*words, variables=network, without=without, steps=steps)
        if context.rank:  # the first rank writes and compares
            return RunResult(()), []
        with (folder / "metrics.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        losses = [float(row[name]) for row in rows for name in ("train_loss", "val_loss")]
        return RunResult(*read_steps(steps)), losses

    together = []
    for number in numbers:
        ranks = () if job.world_size > 1 else ("--processes", number)
        # One run folder for all: the ranks compare their options.
        together.append(run(f"ranks-{number}", "--distributed", *ranks))
    if context.rank:
        return RankComparisons([])
    alone, single = run("one", without=_RANK_VARIABLES)
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = re.findall(r"NCCL INFO (.*(?:NET/|Using network).*)", text)
    warmup, runs = 2 if context.small else 5, []
    for number, (steps, losses) in zip(numbers, together, strict=True):
        difference = early_difference(losses, single)
        comparison = RankComparison(
            ranks=number,
            nodes=-(-job.world_size // job.local_world_size),
            agree=len(losses) == len(single) > 0 and difference <= MAX_DIFFERENCE,
            difference=difference,
            samples=rates([steps], warmup).samples,
            alone=rates([alone], warmup).samples,
            gpu=context.gpu,
            network=[line.strip()[:300] for line in dict.fromkeys(lines)][:6],
        )
        runs.append(comparison)
    return RankComparisons(runs, rates={f"{run.ranks} ranks": run.samples for run in runs})


def evaluate_ranks(comparisons: RankComparisons) -> Verdict:
    """Compare losses and speed of several ranks with one; the worst number of ranks is named."""
    verdicts: list[Verdict] = []
    for run in comparisons.runs:
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
    if not verdicts:  # ranks other than the first have no result
        return "as predicted", "See rank 0."
    return next((verdict for verdict in verdicts if verdict[0] == "slower"), verdicts[-1])


@dataclass(frozen=True)
class Interruptions(Measured):
    """A run that was stopped and resumed, and one of whose ranks another was killed."""

    stop_status: int
    resume_status: int
    equal: bool  # whether the weights are the same bytes
    difference: float  # largest relative difference of the losses
    rank_status: int
    rank_named: bool
    rank_seconds: float  # from the end of the rank to that of the run


def measure_interruption(context: Context) -> Interruptions:
    """Stop a run by SIGTERM and resume it, and kill a rank of another run."""

    def train(name: str, *options: object, **settings: Any) -> tuple[Any, list[float]]:
        """Return what a training printed with its status, and its losses."""
        folder, steps = context.folder / name, context.folder / f"{name}.jsonl"
        words = (*context.pretraining(), "--epochs", 2, "--output-dir", folder, *options)
        return context.aam(*words, steps=steps, **settings), RunResult(*read_steps(steps)).losses

    killed: list[float] = []

    def kill_second_rank(process: subprocess.Popen[bytes]) -> None:
        # The environment of the second rank has its number and the log of this run.
        mark = {b"RANK=1", f"AAM_STEP_LOG={context.folder / 'killed.jsonl'}".encode()}
        pids = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # a process that has ended, or of another user
                if mark <= set(file.read_bytes().split(b"\0")):
                    pids.append(int(file.parent.name))
        if not pids:
            raise PartFailure("no process of rank 1")
        os.kill(min(pids), signal.SIGKILL)
        killed.append(time.monotonic())

    _, whole = train("whole", "--overwrite")
    terminate = subprocess.Popen.terminate
    stopped, _ = train("stopped", "--overwrite", accept=(), after=3, act=terminate)
    resumed, rest = train("stopped", "--resume-from", "auto", accept=())
    weights = [context.folder / f"{n}/model/transformer.safetensors" for n in ("whole", "stopped")]
    equal = all(file.is_file() for file in weights) and len(set(map(sha256, weights))) == 1
    # NCCL refuses two ranks on one GPU.
    device = context.device if context.gpus >= 2 else "cpu"
    options = ("--processes", 2, "--distributed", "--rank-timeout", 10, "--device", device)
    broken, _ = train("killed", "--overwrite", *options, accept=(), after=2, act=kill_second_rank)
    return Interruptions(
        stop_status=stopped.returncode,
        resume_status=resumed.returncode,
        equal=resumed.returncode == 0 and equal,
        difference=early_difference(rest, whole[-len(rest) :]),
        rank_status=broken.returncode,
        rank_named="rank 1 was killed by SIGKILL" in broken.stderr,
        rank_seconds=time.monotonic() - killed[0],
    )


def evaluate_interruption(runs: Interruptions) -> Verdict:
    """Compare exit statuses and weights with what the documents promise."""
    rounding = f"losses of the resumed run differ by up to {runs.difference:.1e}"
    status = f"a run with a killed rank ended with status {runs.rank_status}"
    holds = {
        f"a stopped run ended with status {runs.stop_status}":
            runs.stop_status == Interrupted.status,
        f"the resumed run ended with status {runs.resume_status}": runs.resume_status == 0,
        rounding: runs.equal or runs.difference <= ROUNDING,
        status: runs.rank_status == 128 + signal.SIGKILL,
        "the killed rank was not named": runs.rank_named,
    }  # fmt: skip
    if wrong := "; ".join(sentence for sentence, right in holds.items() if not right):
        return "wrong", f"{wrong[0].upper()}{wrong[1:]}."
    seconds = f"a run with a killed rank names it and ends in {duration(runs.rank_seconds)}"
    if not runs.equal:
        sentence = f"Equal up to rounding ({runs.difference:.0e}), as its sums have no order"
        return "not possible here", f"{sentence}; {seconds}."
    return "as predicted", f"Stopped and resumed bit for bit; {seconds}."
