"""Trials that several processes share: their total, databases of other searches, stop requests."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aam.contract import stop_file
from aam.contract.errors import Interrupted, NotFinite, UsageError
from aam.distributed.signals import StopRequests
from aam.members.search_trials import import_optuna, one_at_a_time, open_studies, run_trials

pytest.importorskip("optuna")


def _objective(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1))


def _process(folder: Path, total: int) -> None:
    """Take part in a search, as a task of an array does."""
    with one_at_a_time(folder):
        (study,) = open_studies(f"sqlite:///{folder / 'search.db'}", ["fold 1"], {"seed": "0"})
    run_trials(study, _objective, total, StopRequests(), wait=False)


@pytest.mark.medium
def test_the_number_of_trials_is_a_total_of_all_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_process, args=(tmp_path, 7)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    (study,) = open_studies(f"sqlite:///{tmp_path / 'search.db'}", ["fold 1"], {"seed": "0"})
    assert Counter(trial.state.name for trial in study.trials)["COMPLETE"] == 7


def test_a_trial_that_another_process_runs_counts(tmp_path: Path) -> None:
    (study,) = open_studies(f"sqlite:///{tmp_path / 'search.db'}", ["fold 1"], {})
    other = study.ask()
    run_trials(study, _objective, 3, StopRequests(), wait=False)
    assert [trial.state.name for trial in study.trials] == ["RUNNING", "COMPLETE", "COMPLETE"]
    study.tell(other, 0.5)
    run_trials(study, _objective, 3, StopRequests())
    assert len(study.trials) == 3


def test_trials_without_a_score_count_and_are_no_result(tmp_path: Path) -> None:
    """A search of which every trial diverges ends."""
    (study,) = open_studies(f"sqlite:///{tmp_path / 'search.db'}", ["fold 1"], {})

    def diverge(trial: Any) -> float:
        raise import_optuna().TrialPruned

    with pytest.raises(NotFinite, match="No trial has a score: fold 1, 2 trials"):
        run_trials(study, diverge, 2, StopRequests())
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "PRUNED"]


def test_a_database_of_another_search_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    open_studies(url, ["fold 1"], {"target": "a", "members": "kernel"})
    open_studies(url, ["fold 1"], {"target": "a", "members": "kernel"})
    with pytest.raises(UsageError, match="a search of another study, or .*: '.*', target; give"):
        open_studies(url, ["fold 1"], {"target": "b", "members": "kernel"})
    with pytest.raises(UsageError, match="cannot be opened: 'shared.db'"):
        open_studies("shared.db", ["fold 1"], {})


def test_a_stop_request_ends_the_search_between_two_trials(tmp_path: Path) -> None:
    stop = StopRequests(tmp_path / "stop")
    (study,) = open_studies(f"sqlite:///{tmp_path / 'search.db'}", ["fold 1"], {})

    def objective(trial: Any) -> float:
        stop.received = signal.SIGUSR1
        return _objective(trial)

    with pytest.raises(Interrupted, match="finished trials are kept"):
        run_trials(study, objective, 3, stop)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]
    assert stop_file.steps_made(tmp_path / "stop") >= stop_file.FEWEST_STEPS
