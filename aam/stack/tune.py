"""`aam tune`: search for faster settings of a workload that train the same network.

For each subject, the search proposes settings, runs them in turns on top of the settings chosen so
far, compares their first losses with the default's, and keeps the fastest setting that passes.
Settings that change the training, such as the batch size, are measured and never kept.

With equal seeds, the losses of the first steps reveal a wrong result before rounding has grown:
fp32 differs by about 2e-7 at step 20, half precision by 1e-3, a gradient scaled by 0.9 by 5e-6 to
9e-3, depending on the learning rate. Runs from weights moved by 1e-7 measure the effect of rounding
alone.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aam.console import info, warn
from aam.contract.errors import DataError, UsageError
from aam.contract.files import make_parent, refuse_existing, write_json, write_text
from aam.contract.options import build, values_of
from aam.contract.options.commands.measure import Tune
from aam.contract.options.commands.train import Pretrain, Train
from aam.contract.options.groups import DeviceOptions
from aam.contract.version import __version__
from aam.environment import read_environment
from aam.memory import shown_size
from aam.network.training.configuration import tuned_for
from aam.number_format import significant
from aam.report.terminal import Table, print_table
from aam.stack.workload import (
    Rates,
    RunResult,
    Settings,
    Workload,
    aam_workload,
    block_totals,
    call_in_child,
    rates,
    run_workload,
)

EARLY = 20  # first steps; their losses are compared one by one
NOISE_FACTOR = 20.0
"""Multiple of the measured noise that counts as rounding: kernels round in every layer."""
MIN_GAIN = 1.03  # gain from which a setting is kept, if it is also faster in each round
HOPELESS = 0.9  # gain in the first round below which a setting is dropped
CONTEXT = 1 << 30  # bytes of GPU memory for the context of the measuring process

Parity = Literal["same numbers", "same up to rounding", "same up to half precision", "another"]
"""Change of the losses that a setting may cause; "another" is another training."""
ENVELOPE: dict[Parity, float] = {
    "same numbers": 0.0,
    "same up to rounding": 1e-6,
    "same up to half precision": 4e-3,
}
"""Largest relative difference of an early loss, unless the measured noise is larger."""

SettingDecision = Literal["kept", "not faster", "rejected", "failed", "another training"]


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about the device of a workload."""

    name: str  # such as "NVIDIA H200" or "CPU, 2 cores"
    arch: str  # such as gfx942 or sm_90; "cpu" for a CPU
    torch: str  # version
    cores: int  # CPU cores of this process
    busy: str = ""  # how others use the device at the same time
    compile_fault: str = ""  # why torch.compile fails with this PyTorch

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.arch != "cpu"


def device_facts(device: str) -> DeviceFacts:
    """Collect the facts about the device of --device; warn if others use it."""
    # The load is read first: importing PyTorch loads the CPU.
    load = os.getloadavg()[0]
    facts = DeviceFacts(**call_in_child(_device_facts, device, load, timeout=300.0))
    if facts.busy:
        warn(f"{facts.busy}; on a device of your own the measured times may differ.")
    return facts


def _device_facts(device: str, load: float) -> dict[str, Any]:
    # PyTorch is imported in the child process only.
    import torch

    from aam.network.numerics.device import (
        arch_of,
        choose_device,
        compile_fault,
        hardware_name,
        is_gpu,
    )

    chosen = choose_device(build(DeviceOptions, {"--device": device}))
    cores, busy = len(os.sched_getaffinity(0)), ""
    name, arch = hardware_name(chosen), arch_of(chosen)
    if is_gpu(chosen):
        free, total = torch.cuda.mem_get_info(chosen)
        if total - free > CONTEXT:
            busy = f"other processes use {(total - free) / 2**30:.1f} GiB of {name}"
    elif load > 0.5 * cores:
        busy = f"other processes use the CPU: load {load:.1f} on {cores} cores"
    fault = compile_fault() if is_gpu(chosen) else ""
    return asdict(DeviceFacts(name, arch, torch.__version__, cores, busy, fault))


@dataclass(frozen=True)
class Setting:
    """A setting to try."""

    label: str  # unique in its subject
    values: Settings = field(default_factory=dict)
    parity: Parity = "same numbers"  # change of the losses that it may cause
    reason: str = ""  # why it may be faster
    redraws: bool = False  # whether it changes the draws of dropout, so is compared without


Propose = Callable[[Settings, DeviceFacts], list[Setting]]
"""Proposes settings to try on a device, from the current values (flag -> value)."""


def _current(flag: str, now: Settings, device: DeviceFacts) -> Any:
    """Return the value of an option; "auto" becomes a number for threads and workers."""
    automatic = {"--cpu-threads": device.cores, "--num-workers": 0}
    if device.gpu:
        automatic["--num-workers"] = min(4, device.cores)
    return automatic.get(flag, "auto") if now[flag] == "auto" else now[flag]


def option_subject(
    flag: str,
    parity: Parity,
    reason: str,
    tried: Callable[[Settings, DeviceFacts], Sequence[Any]],
    redraws: bool = False,
) -> Propose:
    """Make the subject that varies an option; the current value is not tried."""

    def propose(now: Settings, device: DeviceFacts) -> list[Setting]:
        settings = []
        for value in tried(now, device):
            label = f"{flag} {value}"
            if isinstance(value, bool):
                label = flag if value else f"--no-{flag[2:]}"
            if value != _current(flag, now, device):
                settings.append(Setting(label, {flag: value}, parity, reason, redraws))
        return settings

    return propose


# fmt: off
SUBJECTS: dict[str, Propose] = {
    "threads": option_subject(
        "--cpu-threads", "same up to rounding",
        "small tensors spend time on waiting for all threads",
        lambda now, device: () if device.gpu
        else sorted({1, max(1, device.cores // 2), device.cores})),
    "workers": option_subject(
        "--num-workers", "same numbers",
        "other processes make the next batches meanwhile",
        # On a CPU the network uses all cores: more workers would slow it down.
        lambda now, device: [n for n in (0, 1, 2, 4, 8)
                             if n <= (device.cores if device.gpu else min(2, device.cores))]),
    "prefetch": option_subject(
        "--prefetch-factor", "same numbers",
        "batches made ahead bridge batches that take long",
        lambda now, device: (1, 4, 8) if _current("--num-workers", now, device) else ()),
    "attention": option_subject(
        "--attn-implementation", "same up to rounding",
        "another kernel may suit the shapes of this study",
        lambda now, device: ("math", "flash", "mem_efficient")[: 3 if device.gpu else 2]),
    "recompute": option_subject(
        "--gradient-checkpointing", "same up to rounding",
        "less memory with recomputation, less time without", lambda now, device: (True, False)),
    "chunks": option_subject(
        "--asv-chunk", "same up to rounding",
        "the activations of a chunk fit into a cache or into less memory",
        lambda now, device: (0, 64, 256), redraws=True),
    "compile": option_subject(
        "--compile-model", "same up to rounding",
        "fused kernels move less data; the first steps take minutes",
        lambda now, device: () if device.compile_fault else ("auto",), redraws=True),
    "precision": option_subject(
        "--mixed-precision", "same up to half precision",
        "matrix products in half precision move half the bytes",
        lambda now, device: ("none", "bf16", "fp16")[: 3 if device.gpu else 2]),
    "batch-size": option_subject(
        "--batch-size", "another",
        "another number of samples meets in the distance loss: another training",
        lambda now, device: () if now["--batch-size"] == "auto"
        else sorted(max(1, int(now["--batch-size"] * factor)) for factor in (0.5, 2, 4))),
}
# fmt: on
"""Registry of --subjects in the order of the search; `Subject` of
`aam.contract.options.commands.measure` has the same names."""


def program_subjects(
    values: Sequence[str], half: Sequence[str]
) -> tuple[dict[str, str], dict[str, Propose]]:
    """Parse --values; return the default of each name, and the subjects that vary it."""
    defaults: dict[str, str] = {}
    subjects: dict[str, Propose] = {}
    for text in values:
        name, equals, choices = text.partition("=")
        default, *alternatives = choices.split(",")
        if not (equals and name.isidentifier() and all((default, *alternatives))):
            remedy = "write NAME=VALUE,VALUE"
            raise UsageError("Not the values of a name", f"--values {text}", remedy)
        parity: Parity = "same up to half precision" if name in half else "same up to rounding"
        settings = [Setting(f"{name}={value}", {name: value}, parity) for value in alternatives]
        defaults[name] = default
        subjects[name] = lambda now, device, settings=settings: settings  # type: ignore[misc]
    if unknown := [name for name in half if name not in defaults]:
        raise UsageError("A name without values", f"--half {' '.join(unknown)}", "see --values")
    return defaults, subjects


def gain(run: RunResult, base: RunResult, warmup: int, cost: str = "seconds") -> float:
    """Return the speed of a run relative to a base run, by "seconds" or "cpu_seconds"."""
    totals = [block_totals(result, warmup) for result in (base, run)]
    # The CPU time of a block may be 0: the system clock has ticks.
    base_times, times = (total[cost].clip(lower=1e-9) / total["samples"] for total in totals)
    # The median of the ratios of blocks: a pause of the machine in one block does not count.
    return float((base_times / times).median())


def early_difference(losses: Sequence[float], default: Sequence[float]) -> float:
    """Return the largest relative difference of the losses of the first steps.

    >>> round(early_difference([2.0, 1.1], [2.0, 1.0]), 3)
    0.1
    """
    number = min(EARLY, len(losses), len(default))
    first, second = np.array(losses[:number]), np.array(default[:number])
    return float(np.max(np.abs(first - second) / np.maximum(np.abs(second), 1e-12), initial=0.0))


def compare_losses(
    losses: Sequence[float], default: Sequence[float], parity: Parity, noise: float
) -> tuple[bool, str]:
    """Compare the losses of the first steps one by one; return whether they agree, and why."""
    bad = next((k for k in range(len(losses)) if not math.isfinite(losses[k])), None)
    if bad is not None:
        return False, f"the loss of step {bad} is {losses[bad]}"
    number = min(EARLY, len(losses), len(default))
    bound = max(ENVELOPE[parity], NOISE_FACTOR * noise)
    difference = early_difference(losses, default)
    if not difference:
        return True, f"the first {number} losses are equal"
    limit = f"limit {bound:.1e}" if bound else "and should be equal"
    sentence = f"the first {number} losses differ by up to {difference:.1e}, {limit}"
    return difference <= bound, sentence


@dataclass(frozen=True)
class Trial:
    """Measured setting, as in tune.json."""

    subject: str
    setting: str  # label
    values: Settings
    parity: Parity
    reason: str
    options: Settings  # all values of its runs, also values chosen before
    rates: Rates | None  # rates of the successful runs
    gain: float  # speed relative to the reference setting, median of the rounds
    rounds: tuple[float, ...]  # gain of each round
    failure: str  # cause of the first run that failed
    decision: SettingDecision | None = None  # None for a reference
    evidence: tuple[str, ...] = ()  # reasons of the decision


@dataclass
class SettingSearch:
    """Search for faster settings of a workload."""

    workload: Workload
    options: Tune  # rounds, steps, warm-up, --compare-by and time limit
    folder: Path  # folder of the run in progress
    no_dropout: Settings  # values that switch dropout off
    chosen: dict[str, Setting] = field(default_factory=dict)  # subject -> setting that was kept
    trials: list[Trial] = field(default_factory=list)
    _losses: dict[str, list[float]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """Values of all chosen settings."""
        return {name: v for setting in self.chosen.values() for name, v in setting.values.items()}

    def run(self, values: Settings, steps: int, noise_seed: int | None = None) -> RunResult:
        """Run the workload once; return its steps."""
        argv = self.workload(values, self.folder)
        result = run_workload(argv, steps, self.folder, self.options.step_timeout, noise_seed)
        if result.failure and values in ({}, self.no_dropout):
            remedy = "run it by itself, or see `aam memory` if memory is short"
            raise DataError("The workload fails without any change", result.failure, remedy)
        return result

    def default_losses(self, kind: Literal["plain", "again", "moved", "no dropout"]) -> list[float]:
        """Return the first losses of the default; each kind of run is computed once."""
        if kind not in self._losses:
            values = self.no_dropout if kind == "no dropout" else {}
            self._losses[kind] = self.run(values, EARLY, 1 if kind == "moved" else None).losses
        return self._losses[kind]

    def compare(self, setting: Setting, run: RunResult, current: RunResult) -> tuple[bool, str]:
        """Compare the losses of a setting's `run` with the default's losses."""
        default = self.default_losses("plain")
        if setting.parity == "same numbers":
            # Noise from a repeated run: some devices do not repeat their sums exactly.
            noise = early_difference(default, self.default_losses("again"))
            return compare_losses(run.losses, current.losses, setting.parity, noise)
        noise = early_difference(self.default_losses("moved"), default)
        together = (*self.chosen.values(), setting)
        parity: Parity = setting.parity
        if any(setting.parity == "same up to half precision" for setting in together):
            parity = "same up to half precision"
        # Other draws of dropout change the losses by more than rounding.
        if self.no_dropout and any(setting.redraws for setting in together):
            run = self.run({**self.values, **setting.values, **self.no_dropout}, EARLY)
            if run.failure:
                return False, run.failure
            default = self.default_losses("no dropout")
        return compare_losses(run.losses, default, parity, noise)

    def try_subject(self, subject: str, settings: Sequence[Setting]) -> None:
        """Measure the settings of a subject; keep the fastest setting that passes."""
        current = Setting("as chosen" if self.chosen else "as given")
        parity: dict[str, tuple[bool, str]] = {}
        reference, *trials = self.measure(subject, (current, *settings), self.values, parity)
        self.trials.append(reference)
        for trial in sorted(trials, key=lambda trial: -trial.gain):
            evidence = [f"{trial.gain:.2f} times as fast as before, in {len(trial.rounds)} rounds"]
            decision: SettingDecision
            if trial.failure:
                decision, evidence = "failed", [trial.failure]
            elif trial.parity == "another":
                decision = "another training"
            else:
                same, sentence = parity[trial.setting]
                evidence.insert(0, f"{trial.parity}: {sentence}")
                if not same:
                    decision = "rejected"
                elif subject in self.chosen or trial.gain < MIN_GAIN or min(trial.rounds) <= 1:
                    decision = "not faster"
                else:
                    decision = "kept"
                    self.chosen[subject] = next(s for s in settings if s.label == trial.setting)
            self.trials.append(replace(trial, decision=decision, evidence=tuple(evidence)))
            info(f"{subject}: {trial.setting}: {decision}. {'; '.join(evidence)}")

    def measure(
        self,
        subject: str,
        settings: Sequence[Setting],
        common: Settings,
        parity: dict[str, tuple[bool, str]] | None = None,
    ) -> list[Trial]:
        """Measure settings in turns; the first setting is the reference.

        `parity` receives the comparison of the losses of each setting; a setting that differs or
        is slow is dropped. `common` has the values that all runs share.
        """
        rounds, warmup = self.options.rounds, self.options.warmup_steps
        cost = self.options.compare_by.replace("-", "_")
        runs: dict[str, list[RunResult]] = {setting.label: [] for setting in settings}
        dropped: set[str] = set()
        # In turns, not one setting after another: a clock or a load that drifts over minutes then
        # affects all settings alike.
        for number in range(rounds):
            for candidate in settings:
                if candidate.label in dropped:
                    continue
                run = self.run({**common, **candidate.values}, self.options.steps)
                runs[candidate.label].append(run)
                speed = run.failure or f"{significant(rates([run], warmup).samples)} samples/s"
                info(f"{subject}: {candidate.label}, run {number + 1} of {rounds}: {speed}")
                first = runs[settings[0].label][0]
                if first.failure:
                    raise DataError("The chosen settings fail", first.failure, "run them again")
                if run.failure:
                    dropped.add(candidate.label)
                elif parity is not None and not number and run is not first:
                    if candidate.parity == "another":
                        continue
                    parity[candidate.label] = self.compare(candidate, run, first)
                    if not parity[candidate.label][0] or gain(run, first, warmup, cost) < HOPELESS:
                        dropped.add(candidate.label)
        base, trials = runs[settings[0].label], []
        for candidate in settings:
            own_runs = runs[candidate.label]
            good = [run for run in own_runs if not run.failure]
            gains = tuple(
                gain(run, base_run, warmup, cost)
                for run, base_run in zip(own_runs, base, strict=False)
                if not run.failure and not base_run.failure
            )
            trials.append(Trial(
                subject, candidate.label, candidate.values, candidate.parity, candidate.reason,
                {**common, **candidate.values},
                rates(good, warmup) if good else None,
                statistics.median(gains) if gains else 1.0,
                gains,
                next((run.failure for run in own_runs if run.failure), ""),
            ))  # fmt: skip
        return trials


def tune(
    workload: Workload,
    options: Tune,
    subjects: Mapping[str, Propose],
    defaults: Settings,
    device: DeviceFacts,
) -> tuple[SettingSearch, Trial, Trial]:
    """Search for faster settings that train the same network as the default."""
    dropouts = [flag for flag in ("--dropout", "--profile-dropout") if defaults.get(flag)]
    with tempfile.TemporaryDirectory(prefix="running-", dir=options.output_dir) as folder:
        search = SettingSearch(workload, options, Path(folder), dict.fromkeys(dropouts, 0.0))
        for subject, propose in subjects.items():
            if settings := propose({**defaults, **search.values}, device):
                search.try_subject(subject, settings)
        # All chosen settings are measured together: single gains do not multiply.
        final = Setting("chosen", search.values)
        finalists = (Setting("default"), final) if final.values else (Setting("default"),)
        measured = search.measure("result", finalists, {})
    return search, measured[0], measured[-1]


def run_tune(options: Tune, measured: Pretrain | Train | tuple[str, ...]) -> None:
    """Run `aam tune`: search, print the measurements, and write settings.yaml and tune.json."""
    ranks = read_environment(os.environ)
    if ranks.world_size > 1:
        raise UsageError(
            "A measurement is one process, and starts the others",
            f"{ranks.world_size} processes of {ranks.launcher}",
            "start it once, and give --processes for the ranks of the workload",
        )
    if options.warmup_steps >= options.steps:
        raise UsageError(
            "No step is left to measure",
            f"--steps {options.steps} --warmup-steps {options.warmup_steps}",
            "give more --steps",
        )
    if isinstance(measured, tuple):
        command, device_name = shlex.join(measured), "auto"
        first, subjects = program_subjects(options.values, options.half)
        workload = program_workload(measured, first)
        defaults: dict[str, Any] = {}
    else:
        if options.values:
            remedy = "give -- and a program, or --subjects"
            raise UsageError("--values needs a program", " ".join(options.values), remedy)
        command = f"aam {'train' if isinstance(measured, Train) else 'pretrain'}"
        workload = aam_workload(measured, "tune")
        defaults = values_of(measured)
        subjects = {n: SUBJECTS[n] for n in SUBJECTS if n in (options.subjects or SUBJECTS)}
        device_name = measured.device.device
    result = options.output_dir / "tune.json"
    refuse_existing(result, options.overwrite)
    make_parent(result)
    device = device_facts(device_name)
    search, default, final = tune(workload, options, subjects, defaults, device)

    faster = f"{final.gain:.2f} times as fast as the default" if search.chosen else ""
    notes = [f"Settings of `{command}`, {date.today()}."]
    notes += [f"Together {faster}."] if faster else [f"{_NOTHING}."]
    # settings.yaml for --config: each value below its evidence.
    lines = _comment(" ".join(notes))
    if search.chosen and not isinstance(measured, tuple):
        mark = tuned_for(measured.input.table, device.torch, device.name)
        lines += _comment("Refused for another study, device or version:")
        lines += [f"tuned_for: {json.dumps(mark)}"]
    for trial in (trial for trial in search.trials if trial.decision == "kept"):
        reason = f"{trial.reason}; " if trial.reason else ""
        lines += ["", *_comment(f"{trial.subject}: {reason}{'; '.join(trial.evidence)}.")]
        for name, value in trial.values.items():
            lines += [f"{name.removeprefix('--').replace('-', '_')}: {json.dumps(value)}"]
    write_text(options.output_dir / "settings.yaml", "\n".join(lines) + "\n")
    stack = {"aam": __version__, "torch": device.torch, "device": device.name}
    content = {
        "measured": {"command": command, **stack},
        "trials": [asdict(trial) for trial in search.trials],
        "default": asdict(default),
        "chosen": asdict(final),
    }
    # Written last: its existence refuses a second search, so everything must be measured.
    write_json(result, content)

    for subject in subjects:
        if trials := [trial for trial in search.trials if trial.subject == subject]:
            print_table(_table(subject, trials))
    if search.chosen:
        print_table(_table("result", [default, final]))
    elif not search.trials:
        print_table(_table("result", [default]))
    names = ", ".join(setting.label for setting in search.chosen.values())
    sentence = f"{names}: {faster}" if names else _NOTHING
    info(f"{sentence} (on {device.name} with PyTorch {device.torch}).")
    if search.chosen:
        info(f"Next: add --config {options.output_dir / 'settings.yaml'} to `{command}`.")


_NOTHING = "No setting that was tried is faster and trains the same network"
_NOTE = (
    "Medians over blocks of steps; ±: half the interquartile range; CPU ms: CPU time per sample; "
    "wait: share of the time without a batch; gain: times as fast as the first line."
)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")


def _table(subject: str, trials: list[Trial]) -> Table:
    """Make a table of speed, memory (of the GPU, if any) and decision of settings."""
    gpu = any(trial.rates is not None and trial.rates.reserved for trial in trials)
    decided = any(trial.decision for trial in trials)
    heads = ["setting", "samples/s", "CPU ms", "wait", "reserved" if gpu else "RSS", "gain"]
    rows = []
    for trial in trials:
        label = trial.setting
        # The title has the subject.
        short = label.partition(" ")[2] if label.startswith("--") and " " in label else label
        cells = ["-"] * (len(heads) - 1)
        if (measured := trial.rates) is not None:
            # A single block of steps has no spread.
            spread = f" ± {significant(measured.spread)}" if measured.spread else ""
            cells = [
                f"{significant(measured.samples)}{spread}",
                significant(1e3 * measured.cpu_seconds),
                f"{measured.wait:.0%}",
                shown_size(measured.reserved if gpu else measured.rss),
                f"{trial.gain:.2f}",
            ]
        rows.append([short, *cells, *([trial.decision or ""] if decided else [])])
    failures = [f"{trial.setting}: {trial.failure}." for trial in trials if trial.failure]
    heads += ["decision"] if decided else []
    return Table(subject, heads, rows, " ".join([_NOTE, *failures]))


def program_workload(command: Sequence[str], defaults: Settings) -> Workload:
    """Make the workload of any program: its words, with `{name}` for each value."""

    def argv(settings: Settings, folder: Path) -> list[str]:
        return [word.format_map({**defaults, **settings}) for word in command]

    try:
        argv({}, Path())
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        raise UsageError(
            "The command line of the program cannot be made",
            f"{shlex.join(command)}, {type(error).__name__}: {error}",
            "give --values NAME=VALUE,VALUE for each {NAME}, and write {{ and }} for braces",
        ) from error
    return argv
