"""`aam baseline` on a simulated study: figures, files, splits shared with other runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from aam.cli import main
from aam.contract.errors import CannotCreate, DataError, UsageError
from aam.data.splits import Split
from aam.members.base import Labels, Samples
from aam.members.forest import Forest
from aam.members.member import TrainingSamples
from aam.members.relations import AsvRelations
from aam.members.scores import Folds
from tests.support.run_folders import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_study(folder, samples=80)
    return folder


def baseline(study: Path, output: Path, *more: str, column: str = "ph") -> int:
    args = ["--table", str(study / "table.biom"), "--metadata", str(study / "metadata.tsv")]
    args += ["--metadata-column", column, "--output-dir", str(output)]
    return main(["baseline", *args, "--n-estimators", "40", "--n-jobs", "1", *more])


def rows_of(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_one_split_is_learnt_and_repeated(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baseline(study, tmp_path / "a") == 0
    assert "R²" in capsys.readouterr().out
    assert baseline(study, tmp_path / "b") == 0
    for name in ("predictions.tsv", "splits.tsv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    found = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert found["overall"]["samples"] == 16
    assert found["overall"]["r2"] > 0.3
    assert found["split"] == "validation"
    header, *rows = rows_of(tmp_path / "a" / "predictions.tsv")
    assert header == ["sample-id", "fold", "split", "actual", "predicted"]
    truth = {row[0]: row[1] for row in rows_of(study / "metadata.tsv")[2:]}
    assert all(float(truth[row[0]]) == float(row[3]) for row in rows)
    assert baseline(study, tmp_path / "a") == CannotCreate.status


def test_folds_test_every_sample_once_and_keep_subjects_together(
    study: Path, tmp_path: Path
) -> None:
    assert baseline(study, tmp_path, "--folds", "4", "--group-column", "subject") == 0
    _, *rows = rows_of(tmp_path / "predictions.tsv")
    assert len({row[0] for row in rows}) == len(rows) == 80
    assert {row[2] for row in rows} == {"test"}
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert list(found["folds"]) == ["1", "2", "3", "4"]
    sides: dict[tuple[str, str], set[str]] = {}
    for _, fold, part, group in rows_of(tmp_path / "splits.tsv")[1:]:
        sides.setdefault((fold, group), set()).add(part)
    assert all(len(parts) == 1 for parts in sides.values())


def test_the_splits_of_another_run_are_used(study: Path, tmp_path: Path) -> None:
    assert baseline(study, tmp_path / "a", "--test-size", "0.3", "--seed", "3") == 0
    splits = str(tmp_path / "a" / "splits.tsv")
    assert baseline(study, tmp_path / "b", "--splits", splits, "--seed", "4") == 0
    one, two = (rows_of(tmp_path / name / "splits.tsv") for name in "ab")
    assert sorted(one) == sorted(two)
    assert len(rows_of(tmp_path / "b" / "predictions.tsv")) == 1 + 24


def test_classes(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--classifier", "--folds", "3")
    assert baseline(study, tmp_path, *more, column="site") == 0
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["overall"]["accuracy"] > 0.5
    assert found["overall"]["auc"] > 0.7
    header, *rows = rows_of(tmp_path / "predictions.tsv")
    assert header[5:] == ["p_site-1", "p_site-2", "p_site-3"]
    assert all(sum(map(float, row[5:])) == pytest.approx(1, abs=1e-4) for row in rows)
    shown = capsys.readouterr().out
    assert shown.count("site-3") == 2


def test_it_agrees_with_evaluate(study: Path, tmp_path: Path) -> None:
    assert baseline(study, tmp_path, "--folds", "3") == 0
    args = ["--predictions", str(tmp_path / "predictions.tsv")]
    args += ["--metadata", str(study / "metadata.tsv"), "--metadata-column", "ph"]
    assert main(["evaluate", *args, "--output", str(tmp_path / "again.json")]) == 0
    one = json.loads((tmp_path / "metrics.json").read_text())
    two = json.loads((tmp_path / "again.json").read_text())
    for name, value in one["overall"].items():
        assert two["overall"][name] == pytest.approx(value, rel=1e-4)


def test_a_class_that_no_training_sample_has() -> None:
    rng = np.random.default_rng(0)
    counts = sparse.csr_array(rng.integers(1, 9, (12, 5)).astype(np.int32))
    codes = np.array([0, 2] * 5 + [1, 2])
    split = Split(np.arange(10), np.arange(10, 12), np.arange(0))
    labels = Labels.of(codes.astype(float), ("a", "b", "c"), None)
    samples = Samples(counts, np.zeros((5, 4), dtype=np.uint8))
    study = TrainingSamples(samples, AsvRelations(samples.tokens_FL))
    found = Forest(5, 1.0, 1, 1).cross_validate(study, Folds(labels, (split,), 0))
    assert found.predictions_MC.shape == (2, 3)
    assert (found.predictions_MC[:, 1] == 0).all()


def test_relative_abundances_add_up_to_one() -> None:
    counts = sparse.csr_array(np.array([[3, 0, 1], [0, 5, 0]], dtype=np.int32))
    relative = Samples(counts, np.zeros((3, 4), dtype=np.uint8)).relative
    assert relative.toarray().tolist() == [[0.75, 0, 0.25], [0, 1, 0]]


def test_the_kernel_is_a_baseline_too(study: Path, tmp_path: Path) -> None:
    assert baseline(study, tmp_path, "--member", "kernel", "--folds", "4") == 0
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["model"] == "sequence kernel"
    assert found["overall"]["r2"] > 0.3


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (("--n-estimators", "0"), UsageError.status),
        (("--max-features", "1.5"), UsageError.status),
        (("--test-size", "0"), UsageError.status),
        (("--group-column", "nowhere"), DataError.status),
    ],
)
def test_refusals(study: Path, tmp_path: Path, more: tuple[str, ...], status: int) -> None:
    assert baseline(study, tmp_path / "out", *more) == status
    assert not (tmp_path / "out").exists()


@pytest.mark.medium
def test_no_torch_is_loaded() -> None:
    code = "import sys, aam.commands.baseline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_validation_of_one_class_is_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sample in ten is of another class, so four validation samples are all of the first."""
    _, *rows = rows_of(study / "metadata.tsv")
    samples = [row[0] for row in rows if not row[0].startswith("#")]
    lines = [f"{name}\t{'rare' if n % 10 == 0 else 'common'}" for n, name in enumerate(samples)]
    path = tmp_path / "metadata.tsv"
    path.write_text("\n".join(["sample-id\tx", *lines]) + "\n")
    args = ("--metadata", str(path), "--classifier", "--test-size", "0.05", "--seed", "1",
            "--no-stratify")  # fmt: skip
    assert baseline(study, tmp_path / "a", *args, column="x") == DataError.status
    shown = capsys.readouterr().err
    assert "All validation samples are of one class: 4 of 80 samples; choose another" in shown
    assert baseline(study, tmp_path / "a", *args, "--test-size", "0.2", "--stratify",
                    column="x") == 0  # fmt: skip


@pytest.mark.medium
def test_many_small_classes_bring_no_warnings_of_libraries(study: Path, tmp_path: Path) -> None:
    _, *rows = rows_of(study / "metadata.tsv")
    samples = [row[0] for row in rows if not row[0].startswith("#")]
    lines = [f"{name}\tclass {n // 4}" for n, name in enumerate(samples)]
    path = tmp_path / "metadata.tsv"
    path.write_text("\n".join(["sample-id\tx", *lines]) + "\n")
    args = ["--table", study / "table.biom", "--metadata", path, "--metadata-column", "x",
            "--output-dir", tmp_path / "a", "--classifier", "--folds", 2,
            "--n-estimators", 2, "--n-jobs", 1]  # fmt: skip
    command = [sys.executable, "-m", "aam.cli", "baseline", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
