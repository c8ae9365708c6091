"""`aam search`: trials of `aam train` by Optuna, in nested cross-validation.

Each outer fold has an Optuna study that sees its training samples alone. A trial is scored on the
held-out predictions of the inner folds together, as `aam train` scores its folds; it is pruned
between them. The best trial of a fold is trained on all its training samples and predicts its test
samples. Test samples choose nothing; their predictions give the score of the search. A last study
on all samples gives the values to train with.

Several processes share the studies in Optuna's storage until --trials are finished. Processes that
only run trials also count running trials, and go on to the next study. Trials publish heartbeats;
Optuna marks the trials of killed processes as failed, and they do not count.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam import run_record
from aam.arrays import Rows
from aam.console import as_library, info, warn
from aam.contract import stop_file
from aam.contract.errors import (
    CannotCreate,
    DataError,
    Interrupted,
    NotFinite,
    UsageError,
    first_few,
    nearest,
)
from aam.contract.files import make_parent, write_json, write_text
from aam.contract.installation import not_installed
from aam.contract.options import OptionSpec, T, build, flag_of, specs, to_plain, values_of
from aam.contract.options import alternatives as types_of
from aam.contract.options.command_line import parse_command
from aam.contract.options.commands.train import Search, Train
from aam.contract.options.groups import TRANSFORMER, SplitOptions
from aam.contract.version import __version__
from aam.data.formats.text import write_table
from aam.data.metadata import Metadata, as_numbers, read_metadata
from aam.evaluation.intervals import COMPARED
from aam.evaluation.metrics import ScoredPredictions
from aam.evaluation.prediction_files import class_predictions, numeric_predictions, read_predictions
from aam.evaluation.splits import Split, check_covariates
from aam.members.member import TrainingSamples
from aam.members.option_checks import choose_members
from aam.members.prediction_tables import held_out_table
from aam.pipeline.cross_validation import Result, cross_validate_study
from aam.pipeline.labelled_study import LabelledStudy, classes_of_words, label_study, read_study
from aam.pipeline.plan import plan, sequence_length
from aam.pipeline.stop_requests import StopRequests
from aam.serialization.folders import temporary_folder


@dataclass(frozen=True)
class Trials:
    """Trials of a search on a study that all estimators share."""

    base: Train  # options that no trial varies, with all members that a trial may have
    folder: Path  # of the checkpoints of a network while it trains
    labelled: LabelledStudy
    samples: TrainingSamples

    @classmethod
    def of(cls, base: Train, folder: Path, metadata: Metadata) -> Trials:
        """Read the study of a search, and split it."""
        labelled = label_study(base, read_study(base, sequence_length(base)), metadata)
        return cls(base, folder, labelled, plan(base, labelled).samples())

    def train(self, values: Mapping[str, Any], split: Split) -> Result:
        """Train with other values of options, and predict the test samples of a split."""
        options = replaced(self.base, values)
        options = dataclasses.replace(options, members=choose_members(options), folds=1)
        # Trials share the study and its inputs, unless they vary options by which it is read.
        trials = self
        if _reading(options) != _reading(self.base):
            read = dataclasses.replace(options, members=self.base.members)
            trials = Trials.of(read, self.folder, self.labelled.metadata)
            sample_ids = self.labelled.study.table.sample_ids
            row_of = {name: k for k, name in enumerate(trials.labelled.study.table.sample_ids)}
            # The samples of the split that the other options leave.
            training, validation, test = (
                np.array(
                    [row_of[sample_ids[row]] for row in rows if sample_ids[row] in row_of], np.int64
                )
                for rows in (split.train, split.validation, split.test)
            )
            split = Split(training, validation, test)
        study = trials.labelled
        if study.covariates is not None:
            check_covariates(study.covariates, (split,))
        study = dataclasses.replace(study, splits=(split,))
        # Processes of one search train at the same time, so each trial has a folder of its own.
        scratch = temporary_folder(self.folder, "trial") if options.uses_network else nullcontext()
        with as_library(), scratch as path:
            run = options.run if path is None else dataclasses.replace(options.run, output_dir=path)
            options = dataclasses.replace(options, run=run)
            # A final fit, the bootstrap and the comparison with other columns would take longer
            # than the fits of a kernel: 100 instead of 17 CPU-seconds (2 x 2 folds, 2 trials).
            return cross_validate_study(options, study, trials.samples, final=False)[1]


def _reading(options: Train) -> tuple[object, ...]:
    """Return the options on which the samples and labels of a study depend."""
    sample = options.sample.max_bp, options.sample.rarefy_depth
    limits = options.output_min, options.output_max
    return (options.input, options.target, options.covariates, options.phylogeny, sample, limits)


RESULT, BEST, PREDICTIONS = "search.json", "best.yaml", "predictions.tsv"
DATABASE, JOURNAL = "search.db", "search.journal"
"""Files of the trials: an SQLite database, and with --storage journal Optuna's journal."""

ALL = "all samples"  # name of the Optuna study that chooses the values to train with
FINISHED = ("COMPLETE", "PRUNED")  # states of the trials that count
_PROGRESS = ("--trials", "--trials-only", "--storage", "--output-dir")
"""Options that another process of the same search may give differently."""

_HEARTBEAT = 30  # seconds; after twice this time without one, a trial is marked as failed
_SQLITE_TIMEOUT = 120  # seconds that a process waits while others write; Python's default is 5
_UNPRUNED = 5  # trials before the first is pruned
_SEARCH = "search"  # attribute of an Optuna study with the facts that identify its search


@dataclass(frozen=True)
class Axis:
    """Option that is varied: between two numbers, or among choices."""

    spec: OptionSpec
    limits: tuple[float, float] | None  # None for choices
    choices: Mapping[str, Any]  # value of the option by its text

    def suggest(self, trial: Any) -> Any:
        """Return a value of the option; numbers of several magnitudes are logarithmic."""
        name = self.spec.field
        if self.limits is None:
            return self.value(trial.suggest_categorical(name, list(self.choices)))
        low, high = self.limits
        log = low > 0 and high / low >= 10
        if float not in types_of(self.spec.type):
            return trial.suggest_int(name, int(low), int(high), log=log)
        return trial.suggest_float(name, low, high, log=log)

    def value(self, suggested: Any) -> Any:
        """Return the value of the option that a parameter of a trial means."""
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
    fixed = {"--folds", "--repeats", "--study-column", *(spec.flag for spec in specs(SplitOptions))}
    specs_of = {
        spec.flag: spec for spec in specs(Train) if spec.role == "value" and spec.flag not in fixed
    }
    flag = "--" + name.removeprefix("--").replace("_", "-")
    if flag not in specs_of or not values:
        remedy = nearest(
            flag, specs_of, "give NAME=LOW..HIGH or NAME=A,B with an option of aam train"
        )
        raise UsageError("Not an option that can vary", f"--vary {text}", remedy)
    low, between, high = values.partition("..")
    # The parser of the command refuses what does not suit the option.
    choices = {
        choice: parse_command("train", [flag, *choice.split("+")], incomplete=True)[flag]
        for choice in ((low, high) if between else values.split(","))
    }
    if not between:
        return Axis(specs_of[flag], None, choices)
    # An option may also take a word, such as `auto`; a word is no end of a range.
    ends = [end for end in choices.values() if isinstance(end, (int, float))]
    if (
        not {int, float} & {*types_of(specs_of[flag].type)}
        or len(ends) < 2
        or not ends[0] < ends[1]
    ):
        raise UsageError("Not a range of numbers", f"--vary {text}", "give NAME=LOW..HIGH")
    return Axis(specs_of[flag], (float(ends[0]), float(ends[1])), {})


def read_axes(options: Search) -> tuple[Train, tuple[Axis, ...]]:
    """Check the options, and return the options of every trial and what varies."""
    refused = {"--resume-from": options.run.resume_from, "--folds 1": options.folds == 1 or None}
    if given_flags := [flag for flag, value in refused.items() if value is not None]:
        raise UsageError(
            "Options that a search does not have", ", ".join(given_flags), "leave them out"
        )
    members = options.chosen_members
    subsets = itertools.chain.from_iterable(
        itertools.combinations(members, size) for size in range(1, len(members) + 1)
    )
    default: tuple[str, ...] = (f"members={','.join('+'.join(subset) for subset in subsets)}",)
    if members == (TRANSFORMER,) or options.pretrained_encoder is not None:
        default = ("lr=0.0001..0.01", "dropout=0..0.5", "profile-dropout=0..0.9")
    elif len(members) == 1 and not options.vary:
        remedy = "give --vary, such as --vary target-transform=none,zscore for a number"
        raise UsageError("Nothing to vary", f"--members {members[0]} without --vary", remedy)
    axes = tuple(read_axis(text) for text in options.vary or default)
    if len({axis.spec.flag for axis in axes}) < len(axes):
        raise UsageError("Duplicate option of --vary", " ".join(options.vary), "name each once")
    base = dataclasses.replace(build(Train, values_of(options)), repeats=1)
    if varied := next((axis for axis in axes if axis.spec.field == "members"), None):
        # All trials have the same samples, so the study is read as all of their members need it.
        chosen = (name for members in varied.choices.values() for name in members)
        return dataclasses.replace(base, members=tuple(dict.fromkeys(chosen))), axes
    return dataclasses.replace(base, members=choose_members(base)), axes


def search(options: Search) -> dict[str, Any] | None:
    """Run the trials that are left, then evaluate each fold; return the content of `search.json`.

    With --trials-only nothing is evaluated, and None returned.
    """
    import_optuna()
    metadata = read_metadata(options.target.metadata)
    options = classes_of_words(options, metadata)
    base, axes = read_axes(options)
    folder = options.run.output_dir
    trials = Trials.of(base, folder, metadata)
    splits = trials.labelled.splits
    training = [np.sort(np.concatenate([split.train, split.validation])) for split in splits]
    names = [*(f"fold {number}" for number in range(1, len(splits) + 1)), ALL]
    everything = np.unique(np.concatenate(training))
    make_parent(folder / RESULT)
    # Everything that decides the scores: options, content of the files, version.
    values = values_of(options)
    identity = {
        spec.flag: json.dumps(values[spec.flag], default=str)
        for spec in specs(Search)
        if spec.role != "input" and spec.flag not in _PROGRESS
    }
    files = run_record.input_files(options)
    identity |= {f"content of {flag}": file["sha256"] for flag, file in files.items()}
    identity["version of aam"] = __version__
    studies = open_studies(folder, options.storage, names, identity)
    stop = StopRequests()
    for number, rows in enumerate([*training, everything]):
        _optimize(studies, number, options, trials, axes, rows, stop)
    if options.trials_only:
        return None
    folds, tables = [], dict[str, pd.DataFrame]()
    if (folder / PREDICTIONS).exists():
        tables = dict(iter(read_predictions(folder / PREDICTIONS).groupby("fold")))
    for number, (split, study) in enumerate(zip(splits, studies, strict=False), start=1):
        # A search that is started again does not repeat the fold.
        evaluated = study.user_attrs.get("evaluated")
        if evaluated is None or str(number) not in tables:
            stop_if_requested(stop)
            info(f"Fold {number}: evaluating {study.best_params}.")
            evaluated, table = _evaluated(trials, study, axes, split)
            tables[str(number)] = table.assign(fold=str(number))
            write_table(folder / PREDICTIONS, pd.concat(tables.values()))
            study.set_user_attr("evaluated", evaluated)
        folds.append(evaluated)
    best = _described(studies[-1])
    result = {
        "column": base.target.metadata_column,
        "metric": COMPARED[base.target.type][0],
        "folds": folds,
        "inner": float(np.mean([fold["inner"] for fold in folds])),
        "outer": _score_of_predictions(folder / PREDICTIONS, base),
        "best": best,
        "options": to_plain(options),
    }
    write_json(folder / RESULT, result)
    chosen = {axis.spec.flag[2:]: axis.value(best["values"][axis.spec.field]) for axis in axes}
    lines = (f"{name}: {json.dumps(value)}\n" for name, value in chosen.items())
    write_text(folder / BEST, "".join(lines))  # for `aam train --config`
    return result


def _evaluated(
    trials: Trials, study: Any, axes: Sequence[Axis], split: Split
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train the best trial of an outer fold, and predict and score its test samples."""
    # Stored with the values: a later search may find better values, with another score.
    evaluated = _described(study)
    values = {axis.spec.field: axis.value(evaluated["values"][axis.spec.field]) for axis in axes}
    trained = trials.train(values, split)
    evaluated["outer"] = _score(trials.base, trained.scored)
    ids, predictions_MC = trained.samples.samples.sample_ids, trained.combined.uncalibrated_MC
    return evaluated, held_out_table(ids, trained.folds, predictions_MC).astype(str)


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
    # Processes that run at the same time must not draw the same values.
    shared = options.trials_only or finished(study, ("RUNNING",))
    # The number of trials is part of the seed: a resumed search would otherwise draw the values of
    # its first trials again.
    seed = None if shared else options.loop.seed + len(study.trials)
    samplers = optuna.samplers
    study.sampler = (
        samplers.RandomSampler(seed)
        if options.sampler == "random"
        # `constant_liar` keeps processes from drawing values near running trials.
        else samplers.TPESampler(seed=seed, constant_liar=True)
    )
    inner = trials.labelled.inner_splits(options, rows)
    _, function = COMPARED[options.target.type]

    def objective(trial: Any) -> float:
        values = {axis.spec.field: axis.suggest(trial) for axis in axes}
        scored_folds, score = list[ScoredPredictions](), math.nan
        for step, split in enumerate(inner):
            try:
                scored_folds.append(trials.train(values, split).scored)
            # Some values of options leave too few samples for a split.
            except (NotFinite, DataError) as error:
                warn(f"{study.study_name}, {values}: {error}")
                raise optuna.TrialPruned from error
            score = ScoredPredictions.pooled(scored_folds).value(function)
            if math.isnan(score):  # the first folds may have one class
                continue
            trial.report(score, step)
            if step + 1 < len(inner) and trial.should_prune():
                raise optuna.TrialPruned
        # A pruned trial is finished. Optuna counts NaN as a failure and tries it again.
        if math.isnan(score):
            raise optuna.TrialPruned
        return score

    def report(count: int) -> None:
        progress = {"fold": number + 1, "folds": len(studies), "trial": count}
        path = options.run.output_dir / "progress.json"
        write_json(path, progress | {"trials": options.trials})

    run_trials(study, objective, options.trials, stop, report, count_running=options.trials_only)


def _described(study: Any) -> dict[str, Any]:
    return {
        "values": dict(study.best_params),
        "inner": study.best_value,
        "trials": len(finished(study)),
        "pruned": len(finished(study, ("PRUNED",))),
    }


def _score(base: Train, scored: ScoredPredictions) -> float | None:
    """Return a score; None if it is not defined, since JSON has no NaN."""
    score = scored.value(COMPARED[base.target.type][1])
    return None if math.isnan(score) else score


def _score_of_predictions(path: Path, base: Train) -> float | None:
    frame = read_predictions(path)
    labels: list[str] = frame["actual"].tolist()
    if base.target.type == "regression":
        return _score(base, numeric_predictions(frame, as_numbers(labels)))
    return _score(base, class_predictions(frame, labels, base.target.levels))


def import_optuna() -> Any:
    """Import Optuna; it prints warnings alone."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise not_installed("The search needs Optuna", error, "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_studies(
    folder: Path, location: str | None, names: Sequence[str], identity: Mapping[str, str]
) -> list[Any]:
    """Open the Optuna studies of a search in a storage, or create them."""
    optuna, in_folder = import_optuna(), location in (None, "journal")
    file = folder / (JOURNAL if location else DATABASE)
    evidence = f"'{folder}' has files, and no search in this --storage"
    refusal = CannotCreate("The folder is not empty", evidence, "choose another --output-dir")
    # Two processes might both find no study, and store two different identities of the search.
    with (folder / ".search.lock").open("w") as stream:
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(stream, fcntl.LOCK_EX)
        # A job that reserves the folder may leave hidden files.
        occupied = any(not path.name.startswith(".") for path in folder.iterdir())
        if occupied and in_folder and not file.exists():
            raise refusal
        if location == "journal":
            backend = optuna.storages.journal.JournalFileBackend(str(file))
            storage = optuna.storages.JournalStorage(backend)
        else:
            url = location or f"sqlite:///{file.absolute()}"
            lite = {"timeout": _SQLITE_TIMEOUT} if url.startswith("sqlite") else {}
            try:
                storage = optuna.storages.RDBStorage(
                    url, engine_kwargs={"connect_args": lite}, heartbeat_interval=_HEARTBEAT
                )
            # SQLAlchemy's errors, the database driver's errors, or an ImportError.
            except Exception as error:
                raise UsageError(
                    "The database of the search cannot be opened",
                    f"'{url}', {type(error).__name__}: {str(error).splitlines()[0]}",
                    "give journal, or the URL of a database such as sqlite:///search.db, as "
                    "--storage",
                ) from error
        if occupied and not in_folder and not storage.get_all_studies():
            raise refusal
        pruner = optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED)
        studies = [
            optuna.create_study(
                storage=storage, study_name=name, direction="maximize", pruner=pruner,
                load_if_exists=True,
            )
            for name in names
        ]  # fmt: skip
        for study in studies:
            previous = study.user_attrs.get(_SEARCH, {} if study.trials else None)
            if previous is None:
                study.set_user_attr(_SEARCH, dict(identity))
            elif changed := {key for key, _ in previous.items() ^ identity.items()}:
                raise UsageError(
                    "The stored search has other input or options",
                    f"'{location or folder}', changed: {first_few(sorted(changed))}",
                    "give the same, or another --output-dir and --storage for a new search",
                )
    return studies


def finished(study: Any, states: Sequence[str] = FINISHED) -> list[Any]:
    """Return the trials that have a result or were pruned, or are in other states."""
    # Without copies: this is called after each trial, for all trials.
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in states]


def run_trials(
    study: Any,
    objective: Callable[[Any], float],
    total: int,
    stop: StopRequests,
    report: Callable[[int], None] = lambda finished: None,
    count_running: bool = False,
) -> None:
    """Run trials until `total` of a study are finished, here or in other processes."""
    states = (*FINISHED, "RUNNING") if count_running else FINISHED

    def ended(study: Any, trial: Any) -> None:
        number = len(finished(study))
        if trial.state.name in FINISHED:
            outcome = "pruned" if trial.state.name == "PRUNED" else f"{trial.value:.3f}"
            info(f"{study.study_name}, trial {number} of {total}: {trial.params} {outcome}")
        report(number)
        if stop.file:  # progress of a job whose members make no optimizer steps
            stop_file.count_steps(stop.file, stop_file.MIN_STEPS)
        if len(finished(study, states)) >= total:
            study.stop()
        else:
            stop_if_requested(stop)

    if len(finished(study, states)) < total:
        stop_if_requested(stop)
        study.optimize(objective, callbacks=[ended])
    trials = finished(study, states)
    if all(trial.state.name == "PRUNED" for trial in trials):
        remedy = "vary other values of the options (--vary), in another --output-dir"
        raise NotFinite("No trial has a score", f"{study.study_name}, {len(trials)} trials", remedy)


def stop_if_requested(stop: StopRequests) -> None:
    """Raise `Interrupted` if a stop is requested."""
    if stop.pending:
        evidence = "finished trials are kept"
        remedy = "continue it with the same command"
        raise Interrupted("The search is stopped between two trainings", evidence, remedy)


def replaced(options: T, values: Mapping[str, Any]) -> T:
    """Return options with replaced values, by field, in groups too.

    >>> from aam.contract.options.groups import RunOptions
    >>> replaced(RunOptions(output_dir=Path("a")), {"overwrite": True}).overwrite
    True
    """
    by_flag = {flag_of(field): value for field, value in values.items()}
    return build(type(options), values_of(options) | by_flag)
