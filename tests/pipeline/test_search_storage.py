"""Trials that several processes share: their total, storages of other searches, stop requests."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest

from aam.contract import stop_file
from aam.contract.errors import CannotCreate, Interrupted, NotFinite, UsageError
from aam.distributed.stop import StopRequests
from aam.pipeline.search import finished, import_optuna, open_studies, run_trials

pytest.importorskip("optuna")


def _objective(trial: Any) -> float:
    return float(trial.suggest_float("x", 0, 1))


def _study(folder: Path, storage: str | None = None) -> Any:
    return open_studies(folder, storage, ["fold 1"], {"--seed": "0"})[0]


def _process(folder: Path, storage: str | None, total: int) -> None:
    """Take part in a search, as a task of an array does."""
    run_trials(_study(folder, storage), _objective, total, StopRequests())


@pytest.mark.medium
@pytest.mark.parametrize("storage", [None, "journal"])
def test_several_processes_share_the_trials(tmp_path: Path, storage: str | None) -> None:
    """Each finishes the trial that it runs when the last one of the total ends."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_process, args=(tmp_path, storage, 7), daemon=True) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert 7 <= len(finished(_study(tmp_path, storage))) <= 9


def test_a_trial_that_did_not_end_does_not_count(tmp_path: Path) -> None:
    """It is of another process, or of one that was killed."""
    study = _study(tmp_path)
    study.ask()
    run_trials(study, _objective, 3, StopRequests())
    assert [trial.state.name for trial in study.trials] == ["RUNNING", *3 * ["COMPLETE"]]
    assert len(finished(study)) == 3


def test_a_process_that_only_runs_trials_leaves_a_study_that_others_finish(tmp_path: Path) -> None:
    """One trial is finished and the two others run, in another process or a killed one."""
    study = _study(tmp_path)
    run_trials(study, _objective, 1, StopRequests())
    study.ask(), study.ask()
    run_trials(study, _objective, 3, StopRequests(), count_running=True)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", *2 * ["RUNNING"]]
    run_trials(study, _objective, 3, StopRequests())
    assert len(finished(study)) == 3


def test_trials_without_a_score_count_and_are_no_result(tmp_path: Path) -> None:
    """A search of which every trial diverges ends."""
    study = _study(tmp_path)

    def diverge(trial: Any) -> float:
        raise import_optuna().TrialPruned

    with pytest.raises(NotFinite, match="No trial has a score: fold 1, 2 trials"):
        run_trials(study, diverge, 2, StopRequests())
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "PRUNED"]


@pytest.mark.parametrize("storage", [None, "journal", "sqlite"])
def test_a_storage_of_another_search_is_refused(tmp_path: Path, storage: str | None) -> None:
    given = f"sqlite:///{tmp_path / 'shared.db'}" if storage == "sqlite" else storage

    def identify(**facts: str) -> None:
        open_studies(tmp_path, given, ["fold 1"], facts)

    identify(table="a", members="kernel")
    identify(table="a", members="kernel")
    with pytest.raises(
        UsageError, match=r"other input or options: '.*', changed: 1 \(table\); give"
    ):
        identify(table="b", members="kernel")
    with pytest.raises(
        UsageError, match=r"other input or options: '.*', changed: 1 \(tree\); give"
    ):
        identify(table="a", members="kernel", tree="c")
    with pytest.raises(CannotCreate, match="has files, and no search in this --storage"):
        open_studies(tmp_path, "journal" if storage is None else None, ["fold 1"], {})


def test_folders_with_other_files_and_unknown_storages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened: 'shared.db'"):
        open_studies(tmp_path, "shared.db", ["fold 1"], {})
    (tmp_path / ".aam-job").write_text("41\n")  # reserved by a job
    open_studies(tmp_path, None, ["fold 1"], {})
    (tmp_path / "search.db").rename(tmp_path / "notes.db")
    for storage in (None, "journal", f"sqlite:///{tmp_path}/other.db"):
        with pytest.raises(CannotCreate, match="The folder is not empty"):
            open_studies(tmp_path, storage, ["fold 1"], {})


def test_a_stop_request_ends_the_search_between_two_trials(tmp_path: Path) -> None:
    stop = StopRequests(tmp_path / "stop")
    study = _study(tmp_path)

    def objective(trial: Any) -> float:
        stop.received = signal.SIGUSR1
        return _objective(trial)

    with pytest.raises(Interrupted, match="finished trials are kept"):
        run_trials(study, objective, 3, stop)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]
    assert stop_file.steps_made(tmp_path / "stop") >= stop_file.FEWEST_STEPS
