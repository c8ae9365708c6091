"""`aam search`: nested folds, resumption, the files that it writes, and refusals."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam.contract.errors import CannotCreate, UsageError
from aam.contract.options import build, parse_command
from aam.contract.options.commands.search import Search
from aam.contract.options.training import RunOptions
from aam.members.search import _identity, _inner_splits, _keep_options, _prepare, read_axis, typed
from aam.members.search_trials import open_studies
from aam.members.train import predict_held_out, train
from aam.training.labelled_study import load_labelled_study
from tests.support.commands import aam

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
    assert (lr.spec.field, lr.limits, lr.choices) == ("lr", (0.0001, 0.01), ())
    members = read_axis("members=kernel,kernel+forest")
    assert [typed(members.spec, one) for one in members.choices] == [
        ("kernel",),
        ("kernel", "forest"),
    ]
    refused = ("lr", "lr=", "lrr=1,2", "lr=2..1", "lr=0..1", "members=kernel..forest", "table=a,b")
    for text in (*refused, "members=kernel,oak"):
        with pytest.raises(UsageError):
            read_axis(text)


def test_a_folder_that_a_job_has_reserved_is_taken_and_another_one_is_not(
    study_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "search"
    folder.mkdir()
    (folder / ".aam-job").write_text("41\n")
    options = build(Search, parse_command("search", _args(study_dir, folder)))
    _keep_options(options)
    _keep_options(options)
    other = build(Search, parse_command("search", [*_args(study_dir, folder), "--seed", "7"]))
    with pytest.raises(UsageError, match="a search with other options: .*, seed; give"):
        _keep_options(other)
    (folder / "options.json").rename(folder / "notes.json")
    with pytest.raises(CannotCreate, match="not empty"):
        _keep_options(options)


@pytest.mark.medium
def test_a_search_of_another_study_in_one_database_is_refused(
    study_dir: Path, tmp_path: Path
) -> None:
    """The options are those of the first search; the content of the metadata is another."""
    url, metadata = f"sqlite:///{tmp_path / 'shared.db'}", tmp_path / "metadata.tsv"
    shutil.copy(study_dir / "metadata.tsv", metadata)
    args = [*_args(study_dir, tmp_path / "search"), "--metadata", str(metadata)]
    options = build(Search, parse_command("search", args))
    base, _ = _prepare(options)
    labelled = load_labelled_study(base, None, base.split)
    open_studies(url, ["fold 1"], _identity(options, labelled))
    open_studies(url, ["fold 1"], _identity(options, labelled))
    table = pd.read_csv(metadata, sep="\t")
    table["ph"] = pd.to_numeric(table["ph"], errors="coerce") + 1
    table.to_csv(metadata, sep="\t", index=False)
    other = load_labelled_study(base, None, base.split)
    with pytest.raises(UsageError, match="search of another study, or with other .*, target; give"):
        open_studies(url, ["fold 1"], _identity(options, other))


def test_inner_folds_hold_no_sample_of_the_outer_fold(study_dir: Path, tmp_path: Path) -> None:
    options = build(Search, parse_command("search", _args(study_dir, tmp_path / "search")))
    base, _ = _prepare(options)
    labelled = load_labelled_study(base, None, base.split)
    assert len(labelled.splits) == 2
    groups = np.array(labelled.labels)
    for outer in labelled.splits:
        rows = np.sort(np.concatenate([outer.train, outer.validation]))
        inner = _inner_splits(options, labelled, rows)
        assert sorted(np.concatenate([one.test for one in inner])) == rows.tolist()
        for one in inner:
            used = np.concatenate([one.train, one.validation, one.test])
            assert not set(used) & set(outer.test)
            assert not set(groups[one.test]) & set(groups[np.setdiff1d(used, one.test)])


@pytest.mark.medium
def test_a_trial_has_the_predictions_of_aam_train(study_dir: Path, tmp_path: Path) -> None:
    options = build(Search, parse_command("search", _args(study_dir, tmp_path / "search")))
    base, _ = _prepare(options)
    trial = dataclasses.replace(base, members=("kernel", "forest"))
    trained = train(dataclasses.replace(trial, run=RunOptions(output_dir=tmp_path / "run")))
    assert trained is not None
    found = predict_held_out(trial)
    assert found.actual.tolist() == trained.actual.tolist()
    assert found.predicted.tolist() == trained.predicted.tolist()
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
    assert found["outer"] == pytest.approx(np.mean([fold["outer"] for fold in found["folds"]]))
    storage = f"sqlite:///{folder / 'search.db'}"
    studies = optuna.get_all_study_names(storage)
    assert sorted(studies) == ["all samples", "fold 1", "fold 2"]
    best = optuna.load_study(study_name="fold 1", storage=storage)
    assert best.best_value == found["folds"][0]["inner"]
    assert (folder / "best.yaml").read_text().startswith('target-transform: "')
    assert not [*folder.glob("trial-*")]
    assert "folds whose samples chose nothing" in capsys.readouterr().err
    progress = {"fold": 3, "folds": 3, "trial": 2, "trials": 2}
    assert json.loads((folder / "progress.json").read_text()) == progress
    # Another search in the same folder is refused, and so are options that contradict a search.
    assert aam("search", *args, "--seed", 7) == UsageError.status
    assert "seed" in capsys.readouterr().err
    assert aam("search", *args, "--splits", folder / "options.json") == UsageError.status
