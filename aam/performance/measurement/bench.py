"""Benchmarks of a workload: speed and memory of settings, each measured in turns with the default.

A run is divided into blocks of steps. Runs of two settings have the same batches, so they are
compared block by block, and the median of the ratios is their gain.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aam.console import info
from aam.contract.errors import DataError
from aam.number_format import significant
from aam.performance.measurement.journal import Runs
from aam.performance.measurement.settings import Setting
from aam.performance.measurement.workload import RunPlan, RunResult, Step

BLOCK = 5
"""Steps of a block."""

Cost = Callable[[Step], float]
"""Time of a step that counts, in seconds."""

COSTS: dict[str, Cost] = {
    "seconds": lambda step: step.seconds,
    "cpu-seconds": lambda step: step.cpu_seconds,
}
"""Values of --compare-by."""


GoOn = Callable[[Setting, RunResult, RunResult], bool]

REMEDY = "run it by itself, or see `aam memory` if memory is short"


@dataclass(frozen=True)
class Rates:
    """Speed and memory of a setting over all blocks of its runs.

    Attributes:
        samples, asvs: numbers per second, medians over the blocks.
        spread: half the interquartile range of `samples`.
        cpu_seconds: CPU time per sample, median over the blocks.
        wait: fraction of the time in which the network waits for a batch.
        rss, allocated, reserved: peaks in bytes; the last two are of a GPU.
    """

    samples: float
    spread: float
    asvs: float
    cpu_seconds: float
    wait: float
    rss: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class BenchResult:
    """A setting, its rates, and its gain over the setting that it is compared with.

    Attributes:
        setting: the setting, with its values.
        rates: rates of the successful runs; None if no run succeeded.
        gain: ratio of the times, above 1 where the setting is faster.
        rounds: gain of each round.
        failure: cause of the first run that failed; "" if none did.
    """

    setting: Setting
    rates: Rates | None
    gain: float = 1.0
    rounds: tuple[float, ...] = ()
    failure: str = ""


def rates(runs: Sequence[RunResult], warmup: int) -> Rates:
    """Return the rates of runs of one setting; the first `warmup` steps of each do not count.

    Args:
        runs: successful runs of one setting, at least one.
        warmup: number of steps at the start of each run that do not count.
    """
    parts = [block for run in runs for block in blocks(run, warmup)]
    steps = [step for part in parts for step in part]

    def per_second(count: Callable[[Step], int]) -> list[float]:
        return [sum(map(count, part)) / sum(step.seconds for step in part) for part in parts]

    samples = per_second(lambda step: step.samples)
    low, high = np.quantile(samples, (0.25, 0.75)).tolist()
    return Rates(
        samples=statistics.median(samples),
        spread=(high - low) / 2,
        asvs=statistics.median(per_second(lambda step: step.asvs)),
        cpu_seconds=statistics.median(
            sum(step.cpu_seconds for step in part) / sum(step.samples for step in part)
            for part in parts
        ),
        wait=sum(step.wait for step in steps) / sum(step.seconds for step in steps),
        rss=max(step.rss for run in runs for step in run.steps),
        allocated=max(step.allocated for run in runs for step in run.steps),
        reserved=max(step.reserved for run in runs for step in run.steps),
    )


def blocks(run: RunResult, warmup: int) -> list[tuple[Step, ...]]:
    """Divide the steps after the warm-up into blocks; a rest joins the last one.

    >>> run = RunResult(tuple(Step(loss=1.0, seconds=1.0, samples=8) for _ in range(14)))
    >>> [len(block) for block in blocks(run, warmup=2)]
    [5, 7]
    """
    steps = run.steps[min(warmup, len(run.steps) - 1) :]
    number = max(1, len(steps) // BLOCK)
    ends = [BLOCK * k for k in range(number)] + [len(steps)]
    return [steps[ends[k] : ends[k + 1]] for k in range(number)]


def gain(run: RunResult, other: RunResult, warmup: int, cost: Cost) -> float:
    """Compute the gain of a run over another one, above 1 where it is faster.

    Args:
        run, other: runs of equal batches, compared block by block.
        warmup: steps at the start of each run that do not count.
        cost: time of a step, an entry of `COSTS`.

    Returns:
        Median over the blocks of the time per sample of `other` over that of `run`.

    >>> slow = RunResult((Step(loss=1.0, seconds=3.0, samples=8),) * 10)
    >>> fast = RunResult((Step(loss=1.0, seconds=1.5, samples=8),) * 10)
    >>> gain(fast, slow, warmup=2, cost=COSTS["seconds"])
    2.0
    """

    def times(result: RunResult) -> list[float]:
        return [
            # The CPU time of a block may be 0: the clock of the system has ticks.
            max(sum(map(cost, part)), 1e-9) / sum(step.samples for step in part)
            for part in blocks(result, warmup)
        ]

    # Ratios of blocks and not of totals, and their median: a pause of the machine in one block of
    # one run does not count.
    return statistics.median(two / one for one, two in zip(times(run), times(other), strict=False))


@dataclass(frozen=True)
class Bench:
    """Measurement of settings of a workload.

    Attributes:
        runs: runs of the workload, those of the journal included.
        rounds, steps, warmup: runs of each setting, their steps, and those not measured.
        compare_by: key of `COSTS`.
    """

    runs: Runs
    rounds: int
    steps: int
    warmup: int
    compare_by: str = "seconds"

    def compare(
        self,
        subject: str,
        default: Setting,
        settings: Sequence[Setting],
        go_on: GoOn = lambda setting, run, default: True,
    ) -> list[BenchResult]:
        """Measure settings in turns with a default; return those of the default first.

        Args:
            subject: distinguishes these runs of the default from others.
            go_on: whether a setting is measured further, after its first run and the default's.

        Raises:
            DataError: the first run of the default fails.
        """
        results: dict[str, list[RunResult]] = {one.label: [] for one in (default, *settings)}
        dropped: set[str] = set()
        # In turns, not one setting after the other: a clock or a load that drifts over minutes
        # then slows all settings alike.
        for number in range(self.rounds):
            for one in (default, *settings):
                if one.label in dropped:
                    continue
                plan = RunPlan(one.values, self.steps, f"{subject} {number}")
                run = self.runs.run(plan)
                results[one.label].append(run)
                shown = run.failure or f"{significant(rates([run], self.warmup).samples)} samples/s"
                info(f"{subject}: {one.label}, run {number + 1} of {self.rounds}: {shown}")
                first = results[default.label][0]
                if run.failure or (
                    number == 0 and one is not default and not go_on(one, run, first)
                ):
                    dropped.add(one.label)
                if first.failure:
                    raise DataError("The workload fails without any change", first.failure, REMEDY)
        base = results[default.label]
        return [self._measured(one, results[one.label], base) for one in (default, *settings)]

    def _measured(
        self, setting: Setting, runs: Sequence[RunResult], base: Sequence[RunResult]
    ) -> BenchResult:
        good = [run for run in runs if not run.failure]
        failure = next((run.failure for run in runs if run.failure), "")
        if not good:
            return BenchResult(setting, None, failure=failure)
        cost = COSTS[self.compare_by]
        pairs = [
            (one, two)
            for one, two in zip(runs, base, strict=False)
            if not one.failure and not two.failure
        ]
        gains = tuple(gain(one, two, self.warmup, cost) for one, two in pairs)
        middle = statistics.median(gains) if gains else 1.0
        return BenchResult(setting, rates(good, self.warmup), middle, gains, failure)
