"""`aam search`: nested folds, resumption, files, refusals, and trials that processes share."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

from aam.contract import stop_file
from aam.contract.errors import CannotCreate, Interrupted, NotFinite, UsageError
from aam.contract.options import build
from aam.contract.options.command_line import parse_command
from aam.contract.options.commands.train import Search, Train
from aam.data.metadata import read_metadata
from aam.evaluation.splits import write_splits
from aam.pipeline.labelled_study import label_study, read_study
from aam.pipeline.run import run
from aam.pipeline.search import (
    Trials,
    finished,
    import_optuna,
    open_studies,
    read_axes,
    read_axis,
    replaced,
    run_trials,
    search,
)
from aam.pipeline.stop_requests import StopRequests
from tests.support.commands import aam, read

pytest.importorskip("optuna")


def _args(study_dir: Path, folder: Path) -> list[str]:
    return [
        *("--table", str(study_dir / "table.biom"), "--metadata", str(study_dir / "metadata.tsv")),
        *("--metadata-column", "ph", "--group-column", "subject", "--output-dir", str(folder)),
        *("--folds", "2", "--inner-folds", "2", "--members", "kernel", "--rarefy-depth", "0"),
        *("--vary", "target-transform=none,log-zscore"),
    ]


def test_axes_are_ranges_or_choices() -> None:
    lr = read_axis("lr=0.0001..0.01")
    assert (lr.spec.field, lr.limits, lr.choices) == ("lr", (0.0001, 0.01), {})
    members = read_axis("members=kernel,kernel+forest")
    assert members.choices == {"kernel": ("kernel",), "kernel+forest": ("kernel", "forest")}
    refused = ("lr", "lr=", "lrr=1,2", "lr=2..1", "lr=0..1", "members=kernel..forest", "table=a,b")
    # A word is no end of a range, and the splits are those of the search.
    without_effect = ("batch-size=auto..32", "folds=2,3", "test-size=0.1,0.3")
    for text in (*refused, *without_effect, "members=kernel,oak"):
        with pytest.raises(UsageError):
            read_axis(text)


@pytest.mark.parametrize(
    ("members", "varied"),
    [
        ((), ["kernel", "forest", "kernel+forest"]),
        (("kernel", "forest"), ["kernel", "forest", "kernel+forest"]),
        (("kernel",), None),
        (("forest", "transformer"), ["forest", "transformer", "forest+transformer"]),
    ],
)
def test_only_members_of_the_options_are_varied(
    study_dir: Path, tmp_path: Path, members: tuple[str, ...], varied: list[str] | None
) -> None:
    words = _args(study_dir, tmp_path)
    start = words.index("--members")
    words[start : start + 2] = ["--members", *members] if members else []
    options = build(Search, parse_command("search", words[: words.index("--vary")]))
    if varied is None:
        with pytest.raises(UsageError, match="Nothing to vary"):
            read_axes(options)
        return
    _, axes = read_axes(options)
    assert [list(axis.choices) for axis in axes] == [varied]


def _search(args: list[str]) -> dict[str, Any] | None:
    return search(build(Search, parse_command("search", args)))


def _trial_runs(folder: Path) -> bool:
    """Whether the database of a search has a trial that has not ended."""
    if not (folder / "search.db").exists():
        return False
    with closing(sqlite3.connect(folder / "search.db", timeout=30)) as database:
        try:
            return bool(database.execute("SELECT 1 FROM trials WHERE state = 'RUNNING'").fetchall())
        except sqlite3.OperationalError:  # its tables are not made yet
            return False


@pytest.mark.medium
def test_a_killed_search_is_resumed_and_one_of_other_data_is_refused(
    study_dir: Path, tmp_path: Path
) -> None:
    """The killed trial is not counted."""
    import optuna

    folder, data = tmp_path / "search", tmp_path / "data"
    shutil.copytree(study_dir, data)
    args = [*_args(data, folder), "--trials", "2"]
    context = multiprocessing.get_context("fork")
    while not _trial_runs(folder):  # until it was killed while a trial ran
        process = context.Process(target=_search, args=(args,), daemon=True)
        process.start()
        while process.is_alive() and not _trial_runs(folder):
            time.sleep(0.001)
        process.kill()
        process.join()
    result = _search(args)
    assert result is not None
    assert [fold["trials"] for fold in (*result["folds"], result["best"])] == [2, 2, 2]
    study = optuna.load_study(study_name="fold 1", storage=f"sqlite:///{folder / 'search.db'}")
    states = [trial.state.name for trial in study.trials]
    assert states.count("COMPLETE") + states.count("PRUNED") == 2 < len(states)
    assert _search(args) == result  # every score is there
    with h5py.File(data / "table.biom", "r+") as table:
        table["sample/matrix/data"][0] += 1
    with pytest.raises(UsageError, match=r"other input or options: .*\(content of --table\);"):
        _search(args)
    shutil.copy(study_dir / "table.biom", data)
    for more, changed in (
        (("--tree", str(data / "tree.nwk")), "content of --tree"),
        (("--seed", "7", "--categorical-columns", "site"), "--categorical-columns, --seed"),
    ):
        with pytest.raises(UsageError, match=rf"other input or options: .*\({changed}\);"):
            _search([*args, *more])
    table = pd.read_csv(data / "metadata.tsv", sep="\t", dtype=str)
    table.loc[1:, "ph"] = table.loc[1:, "ph"].to_numpy()[::-1]  # row 0 has the types
    table.to_csv(data / "metadata.tsv", sep="\t", index=False)
    with pytest.raises(UsageError, match=r"other input or options: .*\(content of --metadata\);"):
        _search(args)


def test_inner_folds_hold_no_sample_of_the_outer_fold(study_dir: Path, tmp_path: Path) -> None:
    options = build(Search, parse_command("search", _args(study_dir, tmp_path / "search")))
    base, _ = read_axes(options)
    labelled = label_study(base, read_study(base, None), read_metadata(base.target.metadata))
    assert len(labelled.splits) == 2
    groups = np.array(labelled.subjects.groups)
    for outer in labelled.splits:
        rows = np.sort(np.concatenate([outer.train, outer.validation]))
        inner = labelled.inner_splits(options, rows)
        assert sorted(np.concatenate([one.test for one in inner])) == rows.tolist()
        for one in inner:
            used = np.concatenate([one.train, one.validation, one.test])
            assert not set(used) & set(outer.test)
            assert not set(groups[one.test]) & set(groups[np.setdiff1d(used, one.test)])


@pytest.mark.medium
def test_a_trial_has_the_predictions_of_aam_train(study_dir: Path, tmp_path: Path) -> None:
    options = build(Search, parse_command("search", _args(study_dir, tmp_path / "search")))
    base, _ = read_axes(options)
    trials = Trials.of(base, tmp_path, read_metadata(base.target.metadata))
    both = ("kernel", "forest")
    for fold, split in enumerate(trials.labelled.splits, start=1):
        splits = tmp_path / f"splits-{fold}.tsv"
        write_splits(splits, trials.labelled.study.table.sample_ids, [split])
        values = {"output_dir": tmp_path / f"run-{fold}", "splits": splits}
        run(replaced(base, {"members": both, **values}))
        trained = read(tmp_path / f"run-{fold}" / "predictions.tsv")
        found = trials.train({"members": both}, split).scored
        assert found.actual.tolist() == trained["actual"].tolist()
        assert found.predicted.tolist() == trained["predicted"].tolist()
    assert not (tmp_path / "search").exists()


@pytest.mark.slow
def test_a_search_is_resumed_and_scored_by_samples_that_chose_nothing(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import optuna

    folder = tmp_path / "search"
    args = _args(study_dir, folder)
    assert aam("search", *args, "--trials", 1, "--trials-only") == 0
    assert not (folder / "search.json").exists()
    assert aam("search", *args, "--trials", 2) == 0
    found = json.loads((folder / "search.json").read_text())
    assert [fold["trials"] for fold in found["folds"]] == [2, 2]
    for fold in found["folds"]:
        assert {"inner", "outer", "values"} <= fold.keys()
        assert fold["outer"] != fold["inner"]
    predictions = pd.read_csv(folder / "predictions.tsv", sep="\t")
    errors = ((predictions["actual"] - predictions["predicted"]) ** 2).sum()
    total = ((predictions["actual"] - predictions["actual"].mean()) ** 2).sum()
    assert found["outer"] == pytest.approx(1 - errors / total)
    storage = f"sqlite:///{folder / 'search.db'}"
    studies = optuna.get_all_study_names(storage)
    assert sorted(studies) == ["all samples", "fold 1", "fold 2"]
    best = optuna.load_study(study_name="fold 1", storage=storage)
    assert best.best_value == found["folds"][0]["inner"]
    assert (folder / "best.yaml").read_text().startswith('target-transform: "')
    assert {path.name for path in folder.iterdir()} == {
        *("search.db", "search.json", "best.yaml", "progress.json", ".search.lock"),
        "predictions.tsv",
    }
    assert "folds, which chose no option" in capsys.readouterr().err
    progress = {"fold": 3, "folds": 3, "trial": 2, "trials": 2}
    assert json.loads((folder / "progress.json").read_text()) == progress
    # More trials may find better values, of which the score of an evaluated fold is not.
    assert aam("search", *args, "--trials", 4) == 0
    more = json.loads((folder / "search.json").read_text())
    assert more["folds"] == found["folds"]
    assert more["best"]["trials"] == 4
    # Another search in the same folder is refused, and so are options that contradict a search.
    assert aam("search", *args, "--seed", 7) == UsageError.status
    assert "seed" in capsys.readouterr().err
    for option in (("--splits", folder / "search.json"), ("--overwrite",), ("--fsdp",)):
        assert aam("search", *args, *option) == UsageError.status
        assert f"`search` has no such option: '{option[0]}'" in capsys.readouterr().err


@pytest.mark.medium
def test_folds_of_one_class_are_scored_as_by_train(study_dir: Path, tmp_path: Path) -> None:
    """Three of twelve groups have the class: some inner and outer folds have one class alone."""
    metadata = pd.read_csv(study_dir / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    groups = np.arange(len(metadata)) % 12
    metadata["group"] = [f"g{number}" for number in groups]
    metadata["ill"] = ["yes" if number < 3 else "no" for number in groups]
    metadata.to_csv(tmp_path / "m.tsv", sep="\t", index=False)
    given = [
        *("--table", str(study_dir / "table.biom"), "--metadata", str(tmp_path / "m.tsv")),
        *("--metadata-column", "ill", "--group-column", "group", "--folds", "5"),
        *("--members", "kernel"),
    ]
    search_options = ("--inner-folds", "3", "--trials", "1", "--vary", "target-transform=none")
    found = _search([*given, "--output-dir", str(tmp_path / "search"), *search_options])
    assert found is not None
    assert any(fold["outer"] is None for fold in found["folds"])
    # As a search has; of words it predicts the classes without the option.
    words = [*given, "--classifier", "--repeats", "1", "--output-dir", str(tmp_path / "run")]
    run(build(Train, parse_command("train", words)))
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert found["outer"] == pytest.approx(scores["models"]["ensemble"]["metrics"]["auc"]["value"])


@pytest.mark.medium
def test_a_trial_that_leaves_too_few_samples_does_not_end_the_search(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = _args(study_dir, tmp_path / "search")
    args[-1] = "where=ph>0,ph>8.99"
    more = ("--trials", "5", "--sampler", "random")
    found = _search([*args, *more])
    assert found is not None
    described = [*found["folds"], found["best"]]
    assert all(one["values"] == {"where": "ph>0"} for one in described)
    assert sum(one["pruned"] for one in described) > 0
    assert "'where': 'ph>8.99'" in capsys.readouterr().err


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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # 3 s of imports, once
    processes = [
        context.Process(target=_process, args=(tmp_path, storage, 7), daemon=True) for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert 7 <= len(finished(_study(tmp_path, storage))) <= 9


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
    for _ in range(2):
        open_studies(tmp_path, given, ["fold 1"], {"table": "a", "members": "kernel"})
    for other, changed in (({"table": "b"}, "table"), ({"table": "a", "tree": "c"}, "tree")):
        with pytest.raises(UsageError, match=rf"other input or options: '.*{changed}"):
            open_studies(tmp_path, given, ["fold 1"], {"members": "kernel", **other})
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


def test_a_search_that_was_killed_before_its_first_study_goes_on(tmp_path: Path) -> None:
    import_optuna().storages.RDBStorage(f"sqlite:///{tmp_path / 'search.db'}")
    assert [study.study_name for study in open_studies(tmp_path, None, ["fold 1"], {})] == [
        "fold 1"
    ]


def test_a_stop_request_ends_the_search_between_two_trials(tmp_path: Path) -> None:
    stop = StopRequests(tmp_path / "stop")
    study = _study(tmp_path)

    def objective(trial: Any) -> float:
        stop.received = signal.SIGUSR1
        return _objective(trial)

    with pytest.raises(Interrupted, match="finished trials are kept"):
        run_trials(study, objective, 3, stop)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]
    assert stop_file.steps_made(tmp_path / "stop") >= stop_file.MIN_STEPS


@pytest.mark.medium
def test_studies_are_left_out_and_no_score_pools_them(study_dir: Path, tmp_path: Path) -> None:
    metadata = pd.read_csv(study_dir / "metadata.tsv", sep="\t", dtype=str, skiprows=[1])
    subjects = sorted(set(metadata["subject"]))
    study_of = {subject: "abcd"[k % 4] for k, subject in enumerate(subjects)}
    metadata["study"] = metadata["subject"].map(study_of)
    metadata.to_csv(tmp_path / "m.tsv", sep="\t", index=False)
    files = ("--table", study_dir / "table.biom", "--metadata", tmp_path / "m.tsv")
    target = ("--metadata-column", "ph", "--group-column", "subject", "--study-column", "study")
    vary = ("--members", "kernel", "--vary", "target-transform=none,log-zscore", "--trials", 1)
    assert aam("search", *files, *target, *vary, "--output-dir", tmp_path / "search") == 0
    result = json.loads((tmp_path / "search/search.json").read_text())
    predicted = read(tmp_path / "search/predictions.tsv")
    assert predicted.groupby("fold")["study"].nunique().tolist() == [1, 1, 1, 1]
    scores = [r2_score(part["actual"], part["predicted"]) for _, part in predicted.groupby("study")]
    assert result["outer"] == pytest.approx(np.mean(scores))
    words = [str(word) for word in (*files, *target, *vary, "--output-dir", tmp_path / "other")]
    options = build(Search, parse_command("search", words))
    base, _ = read_axes(options)
    labelled = label_study(base, read_study(base, None), read_metadata(base.target.metadata))
    assert labelled.studies is not None
    for outer in labelled.splits:
        rows = np.sort(np.concatenate([outer.train, outer.validation]))
        for inner in labelled.inner_splits(options, rows):
            held_out = {labelled.studies[row] for row in inner.test}
            trained = {labelled.studies[row] for row in (*inner.train, *inner.validation)}
            assert len(held_out) == 1 and len(trained) == 2 and not held_out & trained
