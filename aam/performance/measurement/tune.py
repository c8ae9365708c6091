"""Search for faster settings of a workload that train the same network.

For each subject: propose settings, run each in turns with those chosen so far, compare its losses
with those of the default (`aam.performance.measurement.parity`), and keep the fastest that passes.
Settings of another training, such as the batch size, are measured and never kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aam.console import info
from aam.contract.errors import DataError
from aam.performance.measurement.bench import COSTS, REMEDY, Bench, BenchResult, gain
from aam.performance.measurement.device import DeviceFacts
from aam.performance.measurement.parity import (
    EARLY,
    WEIGHT_NOISE,
    Evidence,
    Parity,
    compare_early,
    compare_late,
    early_difference,
)
from aam.performance.measurement.settings import Propose, Setting, Values
from aam.performance.measurement.workload import RunPlan, RunResult

MIN_GAIN = 1.03
"""Gain from which a setting is kept, if it is faster in each round too."""
HOPELESS = 0.9
"""Gain in the first round below which a setting is not measured further."""
NOISE_SEEDS = (1, 2)

Verdict = Literal["kept", "not faster", "rejected", "failed", "another training"]


@dataclass(frozen=True)
class Trial:
    """A setting that was tried.

    Attributes:
        values: values of the setting alone; `measured` has those of earlier subjects too.
        verdict: decision about the setting.
        evidence: sentences with the reasons of the decision.
    """

    subject: str
    values: Values
    measured: BenchResult
    verdict: Verdict
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tuned:
    """Result of a search.

    Attributes:
        trials: settings that were tried, in their order.
        chosen: settings that were kept, subject -> setting.
        default, final: the default and the kept settings, measured in turns at the end.
        noise: largest early difference of a run from moved weights.
    """

    trials: tuple[Trial, ...]
    chosen: Mapping[str, Trial]
    default: BenchResult
    final: BenchResult
    noise: float

    @property
    def values(self) -> dict[str, Any]:
        """The values of all settings that were kept."""
        return dict(self.final.setting.values)


@dataclass(frozen=True)
class References:
    """Runs of the default that settings are compared with.

    Attributes:
        bench: measurement of settings, with the runs of the journal.
        parity_steps: number of steps of the runs whose late losses are compared.
        no_dropout: values that switch dropout off.
    """

    bench: Bench
    parity_steps: int
    no_dropout: Values

    def run(
        self, values: Values, steps: int, seed: int | None = None, repeat: str = "parity"
    ) -> RunResult:
        """Return a run for a comparison, from moved weights with a seed.

        Raises:
            DataError: the default fails.
        """
        noise = 0.0 if seed is None else WEIGHT_NOISE
        plan = RunPlan(values, steps, repeat, noise, seed or 0)
        found = self.bench.runs.run(plan)
        if found.failure and values in ({}, self.no_dropout):
            raise DataError("The workload fails without any change", found.failure, REMEDY)
        return found

    def noise(self) -> float:
        """Return the largest early difference of a run from moved weights."""
        default, moved = self.run({}, EARLY), self.run({}, EARLY, NOISE_SEEDS[0])
        return early_difference(moved.losses, default.losses)

    def early(self, setting: Setting, run: RunResult, current: RunResult) -> Evidence:
        """Compare the early losses of a setting with those of the default.

        A setting with the same numbers is compared with those chosen so far.
        """
        if setting.parity is Parity.SAME:
            # A repeated run, and not one from moved weights: some devices do not repeat their sums
            # exactly.
            once, again = self.run({}, EARLY), self.run({}, EARLY, repeat="again")
            noise = early_difference(once.losses, again.losses)
            return compare_early(run.losses, current.losses, setting.parity, noise)
        # Other draws of dropout change the losses by more than any rounding.
        if setting.redraws:
            run = self.run({**setting.values, **self.no_dropout}, EARLY)
            if run.failure:
                return Evidence(False, run.failure)
            default = self.run(self.no_dropout, EARLY)
        else:
            default = self.run({}, EARLY)
        return compare_early(run.losses, default.losses, setting.parity, self.noise())

    def late(self, setting: Setting) -> Evidence:
        """Compare the mean of the late losses of a setting with that of the default."""
        off = self.no_dropout if setting.redraws else {}
        found = self.run({**setting.values, **off}, self.parity_steps)
        if found.failure:
            return Evidence(False, found.failure)
        default = self.run(off, self.parity_steps)
        moved = [self.run(off, self.parity_steps, seed).losses for seed in NOISE_SEEDS]
        return compare_late(found.losses, default.losses, moved)


@dataclass
class _Search:
    """Settings chosen so far, and trials."""

    bench: Bench
    references: References
    chosen: dict[str, Trial] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    @property
    def current(self) -> Setting:
        """All chosen settings as one."""
        values: dict[str, Any] = {}
        for trial in self.chosen.values():
            values |= trial.measured.setting.values
        return Setting("as chosen" if values else "default", values)

    def stage(self, subject: str, settings: list[Setting]) -> None:
        """Measure the settings of a subject, and keep the fastest that passes."""
        values = {one.label: one.values for one in settings}
        settings = [self._joined(one) for one in settings]
        early: dict[str, Evidence] = {}
        cost = COSTS[self.bench.compare_by]

        def go_on(setting: Setting, run: RunResult, current: RunResult) -> bool:
            if setting.parity is Parity.OTHER:
                return True
            early[setting.label] = found = self.references.early(setting, run, current)
            if not found.passed:
                return False
            return gain(run, current, self.bench.warmup, cost) >= HOPELESS

        _, *measured = self.bench.compare(subject, self.current, settings, go_on)
        kept = False
        # The fastest first: once one is kept, the long comparison of late losses is spared for the
        # others.
        for one in sorted(measured, key=lambda found: -found.gain):
            label = one.setting.label
            verdict, evidence = self._decide(one, early.get(label), kept)
            trial = Trial(subject, values[label], one, verdict, evidence)
            kept = kept or trial.verdict == "kept"
            self.trials.append(trial)
            info(f"{subject}: {label}: {trial.verdict}. {'; '.join(trial.evidence)}")
            if trial.verdict == "kept":
                self.chosen[subject] = trial

    def _joined(self, setting: Setting) -> Setting:
        """Return a setting together with those chosen so far."""
        values = {**self.current.values, **setting.values}
        before = [trial.measured.setting for trial in self.chosen.values()]
        if setting.parity in (Parity.SAME, Parity.OTHER):
            return dataclasses.replace(setting, values=values)
        half = any(one.parity is Parity.HALF for one in (*before, setting))
        return dataclasses.replace(
            setting,
            values=values,
            parity=Parity.HALF if half else Parity.ROUNDING,
            redraws=any(one.redraws for one in (*before, setting)),
        )

    def _decide(
        self, measured: BenchResult, early: Evidence | None, kept: bool
    ) -> tuple[Verdict, tuple[str, ...]]:
        """Decide about a setting; `kept`: a faster one of its subject is kept already."""
        setting, rounds = measured.setting, measured.rounds
        speed = f"{measured.gain:.2f} times as fast as before, in {len(rounds)} rounds"
        if measured.failure:
            return "failed", (measured.failure,)
        if setting.parity is Parity.OTHER:
            return "another training", (speed,)
        assert early is not None
        evidence = (f"{setting.parity.value}: {early.sentence}", speed)
        if not early.passed:
            return "rejected", evidence
        if kept or measured.gain < MIN_GAIN or min(rounds) <= 1:
            return "not faster", evidence
        if setting.parity is Parity.SAME:
            return "kept", evidence
        late = self.references.late(setting)
        return ("kept" if late.passed else "rejected"), (*evidence, late.sentence)


def tune(
    bench: Bench,
    parity_steps: int,
    stages: Mapping[str, Propose],
    defaults: Values,
    no_dropout: Values,
    device: DeviceFacts,
) -> Tuned:
    """Search for settings that are faster than the default and train the same network.

    Args:
        bench: measurement of settings, with the runs of the journal.
        parity_steps: number of steps of the runs whose late losses are compared.
        stages: subject -> its settings.
        defaults: the value of every option.
        no_dropout: values that switch dropout off.
        device: facts about the device of the workload.

    Raises:
        DataError: the default fails.
    """
    references = References(bench, max(parity_steps, EARLY), no_dropout)
    search = _Search(bench, references)
    for subject, propose in stages.items():
        settings = propose({**defaults, **search.current.values}, device)
        if settings:
            search.stage(subject, settings)
    default = Setting("default")
    final = dataclasses.replace(search.current, label="chosen")
    # Measured together again: gains of single settings do not multiply.
    measured = bench.compare("result", default, [final] if final.values else [])
    return Tuned(tuple(search.trials), search.chosen, measured[0], measured[-1], references.noise())
