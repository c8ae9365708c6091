"""Trials of a search, shared by several processes: the Optuna database, claims, and stop requests.

Each fold has an Optuna study. Its number of trials is a total: a process starts a trial while fewer
are finished or running, and gives up one that was started at the same moment as the last. Trials
publish heartbeats, so that those of failed processes are started again.
"""

from __future__ import annotations

import fcntl
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aam.console import info
from aam.contract import stop_file
from aam.contract.errors import Interrupted, NotFinite, UsageError
from aam.contract.installation import not_installed
from aam.distributed.signals import StopRequests

_HEARTBEAT = 30
"""Seconds between heartbeats; a trial without one for twice as long is started again."""

_POLL = 2.0
"""Seconds between two looks at the trials of other processes."""

_SQLITE_TIMEOUT = 120
"""Seconds that a process waits while others write to an SQLite database; Python's default is 5."""

_UNPRUNED = 5
"""Trials before the first is pruned."""

_SEARCH = "search"
"""Attribute of an Optuna study with the facts that identify its search."""


class _NotNeeded(Exception):
    """Trial that other processes started at the same moment as the last one."""


def import_optuna() -> Any:
    """Import Optuna; it prints warnings alone.

    Raises:
        Unavailable: Optuna is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise not_installed("The search needs Optuna", error, "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of a search at a time run the block; without locks, all at once."""
    with (folder / ".search.lock").open("w") as stream:
        with suppress(OSError):  # a file system without locks, with a database elsewhere
            fcntl.lockf(stream, fcntl.LOCK_EX)
        yield


def open_studies(url: str, names: Sequence[str], identity: Mapping[str, str]) -> list[Any]:
    """Open the Optuna studies of a search, or create them.

    Args:
        url: of the database, such as `sqlite:///search.db`.
        names: of the studies.
        identity: facts that are equal in all processes of the search.

    Raises:
        UsageError: the database has a search with other facts, or cannot be opened.
    """
    optuna = import_optuna()
    lite = {"connect_args": {"timeout": _SQLITE_TIMEOUT}} if url.startswith("sqlite") else {}
    try:
        storage = optuna.storages.RDBStorage(url, engine_kwargs=lite, heartbeat_interval=_HEARTBEAT)
    except Exception as error:  # of SQLAlchemy, of the driver of the database, or an ImportError
        reason = f"'{url}', {type(error).__name__}: {str(error).splitlines()[0]}"
        remedy = "give the URL of a database, such as sqlite:///search.db, as --storage"
        raise UsageError("The database of the search cannot be opened", reason, remedy) from error
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
        elif changed := sorted(key for key in identity if identity[key] != before.get(key)):
            raise UsageError(
                "The database has a search of another study, or with other options",
                f"'{url}', {', '.join(changed)}",
                "give the same input and options, or another --storage and --output-dir",
            )
        studies.append(study)
    return studies


def run_trials(
    study: Any,
    objective: Callable[[Any], float],
    total: int,
    stop: StopRequests,
    wait: bool = True,
    report: Callable[[int], None] = lambda finished: None,
) -> None:
    """Run trials until a study has `total` of them, those of other processes included.

    Args:
        stop: checked between two trials.
        wait: until the running trials of other processes are finished too.
        report: called after each trial with the number of finished trials.

    Raises:
        Interrupted: a stop is requested.
        NotFinite: no trial has a score, after waiting.
    """
    optuna = import_optuna()
    state = optuna.trial.TrialState
    counted, announced = (state.COMPLETE, state.PRUNED, state.RUNNING), False

    def claimed(trial: Any) -> float:
        started = study.get_trials(deepcopy=False, states=counted)
        if sum(other.number < trial.number for other in started) >= total:
            raise _NotNeeded
        return objective(trial)

    while True:
        stop_if_requested(stop)
        optuna.storages.fail_stale_trials(study)
        trials = study.get_trials(deepcopy=False, states=counted)
        running = sum(trial.state == state.RUNNING for trial in trials)
        if len(trials) < total:
            study.optimize(
                claimed,
                n_trials=1,
                catch=(_NotNeeded,),
                callbacks=[lambda study, trial: report(_print(study, trial, total))],
            )
            if stop.file:  # progress of a job whose members make no optimizer steps
                stop_file.count_steps(stop.file, stop_file.FEWEST_STEPS)
        elif wait and running:
            if not announced:
                info(f"{study.study_name}: waiting for {running} trials of other processes.")
                announced = True
            time.sleep(_POLL)
        elif wait and all(trial.state != state.COMPLETE for trial in trials):
            raise NotFinite(
                "No trial has a score",
                f"{study.study_name}, {total} trials",
                "vary other values of the options (--vary), in another --output-dir",
            )
        else:
            return


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
    finished = sum(other.state.name in ("COMPLETE", "PRUNED") for other in study.trials)
    if trial.state.name != "FAIL":
        shown = "pruned" if trial.state.name == "PRUNED" else f"{trial.value:.3f}"
        info(f"{study.study_name}, trial {finished} of {total}: {trial.params} {shown}")
    return finished
