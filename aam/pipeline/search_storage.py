"""Trials of a search in Optuna's storage, which several processes share; stop requests.

Each fold has an Optuna study. Its number of trials is a total of finished ones: the process that
evaluates the folds runs trials until there are so many. Processes that only run trials count the
running ones too and go on to the next study, so that at most one trial too many is started by each,
when two begin theirs at the same moment. Trials publish heartbeats; Optuna marks those of killed
processes as failed, and they do not count.
"""

from __future__ import annotations

import fcntl
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aam.console import info
from aam.contract import stop_file
from aam.contract.errors import CannotCreate, Interrupted, NotFinite, UsageError, first_few
from aam.contract.installation import not_installed
from aam.distributed.stop import StopRequests

DATABASE, JOURNAL = "search.db", "search.journal"
"""Files of the trials: an SQLite database, and with --storage journal Optuna's journal."""

FINISHED = ("COMPLETE", "PRUNED")
"""States of the trials that count."""

_HEARTBEAT = 30
"""Seconds between heartbeats; a trial without one for twice as long is marked as failed."""

_SQLITE_TIMEOUT = 120
"""Seconds that a process waits while others write to an SQLite database; Python's default is 5."""

_UNPRUNED = 5
"""Trials before the first is pruned."""

_SEARCH = "search"
"""Attribute of an Optuna study with the facts that identify its search."""


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
    folder: Path, given: str | None, names: Sequence[str], identity: Mapping[str, str]
) -> list[Any]:
    """Open the Optuna studies of a search, or create them."""
    optuna = import_optuna()
    # Two processes might both find no study, and store two different identities of the search.
    with _one_at_a_time(folder):
        storage = _storage(folder, given)
        studies = []
        for name in names:
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize",
                pruner=optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED),
                load_if_exists=True,
            )
            before = study.user_attrs.get(_SEARCH, {} if study.trials else None)
            if before is None:
                study.set_user_attr(_SEARCH, dict(identity))
            elif changed := sorted(
                key for key in {**identity, **before} if identity.get(key) != before.get(key)
            ):
                raise UsageError(
                    "The search that is there has other input or options",
                    f"'{given or folder}', changed: {first_few(changed)}",
                    "give the same, or another --output-dir and --storage for a new search",
                )
            studies.append(study)
    return studies


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of a search at a time make its studies; without locks, all at once."""
    with (folder / ".search.lock").open("w") as stream:
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(stream, fcntl.LOCK_EX)
        yield


def _storage(folder: Path, given: str | None) -> Any:
    """Open Optuna's storage."""
    storages = import_optuna().storages
    files: dict[str | None, str] = {None: DATABASE, "journal": JOURNAL}
    # Hidden files may be those of a job that reserved the folder.
    occupied = any(not one.name.startswith(".") for one in folder.iterdir())
    if occupied and given in files and not (folder / files[given]).exists():
        raise _occupied(folder)
    if given == "journal":
        journal = storages.journal
        path = str(folder / JOURNAL)
        return storages.JournalStorage(journal.JournalFileBackend(path))
    url = given or f"sqlite:///{(folder / DATABASE).absolute()}"
    lite = {"connect_args": {"timeout": _SQLITE_TIMEOUT}} if url.startswith("sqlite") else {}
    try:
        storage = storages.RDBStorage(url, engine_kwargs=lite, heartbeat_interval=_HEARTBEAT)
    except Exception as error:  # of SQLAlchemy, of the driver of the database, or an ImportError
        reason = f"'{url}', {type(error).__name__}: {str(error).splitlines()[0]}"
        remedy = "give journal, or the URL of a database such as sqlite:///search.db, as --storage"
        raise UsageError("The database of the search cannot be opened", reason, remedy) from error
    if occupied and not storage.get_all_studies():
        raise _occupied(folder)
    return storage


def _occupied(folder: Path) -> CannotCreate:
    evidence = f"'{folder}' has files, and no search in this --storage"
    return CannotCreate("The folder is not empty", evidence, "choose another --output-dir")


def finished(study: Any) -> list[Any]:
    """Return the trials that have a result or were pruned."""
    return _in_states(study, FINISHED)


def _in_states(study: Any, states: Sequence[str]) -> list[Any]:
    # Without copies: this is called before and after each trial, for all trials.
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in states]


def run_trials(
    study: Any,
    objective: Callable[[Any], float],
    total: int,
    stop: StopRequests,
    report: Callable[[int], None] = lambda finished: None,
    count_running: bool = False,
) -> None:
    """Run trials until `total` of a study are finished, those of other processes included."""
    states = (*FINISHED, "RUNNING") if count_running else FINISHED
    while len(trials := _in_states(study, states)) < total:
        stop_if_requested(stop)
        # One trial at a time, so that a stop request and the trials of other processes are noticed.
        study.optimize(
            objective,
            n_trials=1,
            callbacks=[lambda study, trial: report(_print(study, trial, total))],
        )
        if stop.file:  # progress of a job whose members make no optimizer steps
            stop_file.count_steps(stop.file, stop_file.FEWEST_STEPS)
    if all(trial.state.name == "PRUNED" for trial in trials):
        raise NotFinite(
            "No trial has a score",
            f"{study.study_name}, {len(trials)} trials",
            "vary other values of the options (--vary), in another --output-dir",
        )


def stop_if_requested(stop: StopRequests) -> None:
    """Raise `Interrupted` if a stop is requested."""
    if stop.pending:
        raise Interrupted(
            "The search is stopped between two trainings",
            "finished trials are kept",
            "continue it with the same command",
        )


def _print(study: Any, trial: Any, total: int) -> int:
    """Print a finished trial, and return how many are finished."""
    number = len(finished(study))
    if trial.state.name in FINISHED:
        shown = "pruned" if trial.state.name == "PRUNED" else f"{trial.value:.3f}"
        info(f"{study.study_name}, trial {number} of {total}: {trial.params} {shown}")
    return number
