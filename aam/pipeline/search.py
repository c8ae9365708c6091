"""Hyper-parameter search: trials of `aam train` by Optuna, in nested cross-validation.

Each outer fold has an Optuna study that sees its training samples alone. A trial is the mean score
of the inner folds, and is pruned between them. The best trial of a fold is trained on all its
training samples and scored on its test samples: the score of the search, which chose nothing. A
last study on all samples gives the values to train with.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aam import __version__
from aam.console import info, warn
from aam.contract import run_record
from aam.contract.errors import DataError, NotFinite, UsageError
from aam.contract.files import make_parent, write_json, write_text
from aam.contract.options import OptionSpec, build, parse_command, specs, to_plain
from aam.contract.options.commands.search import Search
from aam.contract.options.commands.train import Train
from aam.contract.options.field import members as types_of
from aam.contract.options.study import SplitOptions
from aam.contract.suggestions import nearest
from aam.data.splits import Rows, Split, make_splits
from aam.data.targets import category_codes
from aam.distributed.stop import StopRequests
from aam.members.option_checks import TRANSFORMER, choose_members
from aam.members.scores import SCORED
from aam.pipeline.search_storage import (
    finished,
    import_optuna,
    open_studies,
    run_trials,
    stop_if_requested,
)
from aam.pipeline.trials import Trials
from aam.training.labelled_study import LabelledStudy

RESULT, BEST = "search.json", "best.yaml"
ALL = "all samples"
"""Name of the Optuna study that chooses the values to train with."""

_PROGRESS = ("--trials", "--trials-only", "--storage", "--output-dir")
"""Options that another process of the same search may give differently."""


@dataclass(frozen=True)
class Axis:
    """Option that is varied: between two numbers, or among choices.

    Attributes:
        spec: the option.
        limits: lowest and highest number; None for choices.
        choices: values of the option as they are written.
    """

    spec: OptionSpec
    limits: tuple[float, float] | None
    choices: Mapping[str, Any]

    def suggest(self, trial: Any) -> Any:
        """Return a number or a choice; numbers of several magnitudes are logarithmic."""
        name = self.spec.field
        if self.limits is None:
            return trial.suggest_categorical(name, list(self.choices))
        low, high = self.limits
        log = low > 0 and high / low >= 10
        if float not in types_of(self.spec.type):
            return trial.suggest_int(name, int(low), int(high), log=log)
        return trial.suggest_float(name, low, high, log=log)

    def value(self, suggested: Any) -> Any:
        """Return the value of the option that a suggestion means."""
        return suggested if self.limits else self.choices[suggested]


def read_axis(text: str) -> Axis:
    """Read an item of --vary.

    >>> read_axis("lr=0.0001..0.01").limits
    (0.0001, 0.01)
    >>> read_axis("members=kernel,kernel+forest").choices["kernel+forest"]
    ('kernel', 'forest')
    """
    name, _, values = text.partition("=")
    # Trials are scored on the splits of the search.
    fixed = {"--folds", *(spec.flag for spec in specs(SplitOptions))}
    known = {
        spec.flag: spec for spec in specs(Train) if spec.role == "value" and spec.flag not in fixed
    }
    flag = "--" + name.removeprefix("--").replace("_", "-")
    if flag not in known or not values:
        remedy = nearest(flag, known, "give NAME=LOW..HIGH or NAME=A,B with an option of aam train")
        raise UsageError("Not an option that can vary", f"--vary {text}", remedy)
    low, between, high = values.partition("..")
    texts = (low, high) if between else values.split(",")
    choices = {choice: _typed(known[flag], choice) for choice in texts}
    if not between:
        return Axis(known[flag], None, choices)
    # An option may also take a word, such as `auto`, which is no end of a range.
    ends = [end for end in choices.values() if isinstance(end, (int, float))]
    if not {int, float} & {*types_of(known[flag].type)} or len(ends) < 2 or not ends[0] < ends[1]:
        raise UsageError("Not a range of numbers", f"--vary {text}", "give NAME=LOW..HIGH")
    return Axis(known[flag], (float(ends[0]), float(ends[1])), {})


def _typed(spec: OptionSpec, text: str) -> Any:
    """Read a value of an option in --vary; raises UsageError if it does not suit."""
    given = parse_command("train", [spec.flag, *text.split("+")], incomplete=True)
    return given[spec.flag]


def search(options: Search) -> dict[str, Any] | None:
    """Run the trials that are left, then evaluate each fold.

    Args:
        options: axes, numbers of trials and folds, storage, and the options of every trial.

    Returns:
        The content of `search.json`; None with --trials-only.

    Raises:
        UsageError: options that a search does not take, or another search in the folder or in the
            storage.
        CannotCreate: the folder has other files.
        Unavailable: Optuna is not installed.
        Interrupted: a stop is requested.
        NotFinite: no trial of a fold has a score.
        AamError: see `Trials.score`.
    """
    import_optuna()
    base, axes = _prepare(options)
    metric, _ = next(iter(SCORED[base.target.type].items()))
    folder = options.run.output_dir
    trials = Trials.of(base, folder)
    splits = trials.labelled.splits
    training = [np.sort(np.concatenate([one.train, one.validation])) for one in splits]
    names = [*(f"fold {number}" for number in range(1, len(splits) + 1)), ALL]
    everything = np.unique(np.concatenate([*training, *(one.test for one in splits)]))
    make_parent(folder / RESULT)
    studies = open_studies(folder, options.storage, names, _identity(options))
    stop = StopRequests()
    for number, rows in enumerate([*training, everything]):
        _optimize(studies, number, options, trials, axes, rows, stop)
    if options.trials_only:
        return None
    folds = []
    for number, (split, study) in enumerate(zip(splits, studies, strict=False), start=1):
        # The score is stored with the study: a search that is started again does not repeat the
        # fold.
        if (evaluated := study.user_attrs.get("evaluated")) is None:
            stop_if_requested(stop)
            info(f"Fold {number}: evaluating {study.best_params}.")
            # With the values: more trials may find better ones, which this score is not of.
            evaluated = _described(study)
            evaluated["outer"] = trials.score(_values(axes, evaluated["values"]), split)
            study.set_user_attr("evaluated", evaluated)
        folds.append(evaluated)
    best = _described(studies[-1])
    result = {
        "column": base.target.metadata_column,
        "metric": metric,
        "folds": folds,
        "inner": float(np.mean([fold["inner"] for fold in folds])),
        "outer": float(np.mean([fold["outer"] for fold in folds])),
        "best": best,
        "options": to_plain(options),
    }
    write_json(folder / RESULT, result)
    write_text(folder / BEST, _config(axes, best["values"]))
    return result


def _prepare(options: Search) -> tuple[Train, tuple[Axis, ...]]:
    """Check the options and return the options of every trial and its axes."""
    refused = {
        "--resume-from": options.run.resume_from,
        "--folds 1": options.folds == 1 or None,
    }
    if given := [flag for flag, value in refused.items() if value is not None]:
        raise UsageError("Options that a search does not take", ", ".join(given), "leave them out")
    default: tuple[str, ...] = ("members=kernel,forest,kernel+forest",)
    if options.members == (TRANSFORMER,) or options.pretrained_encoder is not None:
        default = ("lr=0.0001..0.01", "dropout=0..0.5", "profile-dropout=0..0.9")
    axes = tuple(read_axis(text) for text in options.vary or default)
    if len({axis.spec.flag for axis in axes}) < len(axes):
        raise UsageError("An option varies twice", " ".join(options.vary), "name each once")
    values = {spec.flag: run_record.value_of(options, spec.field) for spec in specs(Train)}
    base = build(Train, values)
    members = base.members
    if varied := next((axis for axis in axes if axis.spec.field == "members"), None):
        # All trials have the same samples, so the study is read as all of their members need it.
        chosen = (name for members in varied.choices.values() for name in members)
        members = tuple(dict.fromkeys(chosen))
    base = dataclasses.replace(base, members=members if varied else choose_members(base))
    return base, axes


def _identity(options: Search) -> dict[str, str]:
    """Return all that decides the scores of a search: options, content of its files, version."""
    values = {
        spec.flag: json.dumps(run_record.value_of(options, spec.field), default=str)
        for spec in specs(Search)
        if spec.role != "input" and spec.flag not in _PROGRESS
    }
    files = run_record.input_files(options)
    digests = {f"content of {flag}": file["sha256"] for flag, file in files.items()}
    return values | digests | {"version of aam": __version__}


def _optimize(
    studies: Sequence[Any],
    number: int,
    options: Search,
    trials: Trials,
    axes: Sequence[Axis],
    rows: Rows,
    stop: StopRequests,
) -> None:
    """Run the trials of a study that are left, and write `progress.json` after each of them."""
    optuna, study = import_optuna(), studies[number]
    others = study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
    # Processes that run at the same time must not draw the same values.
    shared = options.trials_only or others
    # The number of trials is part of the seed: a resumed search would otherwise draw the values of
    # its first trials again.
    seed = None if shared else options.loop.seed + len(study.trials)
    samplers = optuna.samplers
    study.sampler = (
        samplers.RandomSampler(seed)
        if options.sampler == "random"
        # `constant_liar` keeps processes from drawing values near those of running trials.
        else samplers.TPESampler(seed=seed, constant_liar=True)
    )
    inner = _inner_splits(options, trials.labelled, rows)

    def objective(trial: Any) -> float:
        values = _values(axes, {axis.spec.field: axis.suggest(trial) for axis in axes})
        scores: list[float] = []
        for step, split in enumerate(inner):
            try:
                score = trials.score(values, split)
            # A pruned trial is finished. Optuna counts NaN as a failure, which is tried again. The
            # samples that the values of a trial leave may be too few to be split.
            except (NotFinite, DataError) as error:
                warn(f"{study.study_name}, {values}: {error}")
                raise optuna.TrialPruned from error
            if math.isnan(score):
                raise optuna.TrialPruned
            scores.append(score)
            trial.report(float(np.mean(scores)), step)
            if step + 1 < len(inner) and trial.should_prune():
                raise optuna.TrialPruned
        return float(np.mean(scores))

    def report(count: int) -> None:
        place = {"fold": number + 1, "folds": len(studies)}
        content = place | {"trial": count, "trials": options.trials}
        run_record.write(options.run.output_dir / "progress.json", content)

    run_trials(study, objective, options.trials, stop, report, count_running=options.trials_only)


def _inner_splits(options: Search, labelled: LabelledStudy, rows: Rows) -> list[Split]:
    """Split the samples at `rows` into inner folds; groups stay together."""
    codes = category_codes(options.target, labelled.values[rows])
    made = make_splits(
        len(rows),
        test_size=options.split.test_size,
        folds=options.inner_folds,
        seed=options.loop.seed,
        groups=None if labelled.labels is None else [labelled.labels[row] for row in rows],
        classes=codes if options.split.stratify else None,
    )
    return [Split(rows[one.train], rows[one.validation], rows[one.test]) for one in made]


def _values(axes: Sequence[Axis], suggested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options of a trial, by field."""
    return {axis.spec.field: axis.value(suggested[axis.spec.field]) for axis in axes}


def _described(study: Any) -> dict[str, Any]:
    """Return values, inner score and number of trials of a study."""
    trials = finished(study)
    return {
        "values": dict(study.best_params),
        "inner": study.best_value,
        "trials": len(trials),
        "pruned": sum(trial.state.name == "PRUNED" for trial in trials),
    }


def _config(axes: Sequence[Axis], values: Mapping[str, Any]) -> str:
    """Return values as a file for `aam train --config`."""
    lines = []
    for axis in axes:
        value = axis.value(values[axis.spec.field])
        plain = list(value) if isinstance(value, tuple) else value
        lines.append(f"{axis.spec.flag.removeprefix('--')}: {json.dumps(plain)}\n")
    return "".join(lines)
