"""Shards of predictions and embeddings, and their merging."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from aam.contract.errors import CannotCreate, DataError, MissingInput, UsageError
from aam.contract.shards import Shard
from aam.serialization import model_folder
from tests.support.commands import aam, read, train

Capture = pytest.CaptureFixture[str]
COUNT = 4


@pytest.fixture(scope="module")
def store(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, memory-mapped."""
    folder = tmp_path_factory.mktemp("store") / "study.aam"
    assert aam("prepare", "--table", study_dir / "table.biom", "--output", folder) == 0
    return folder


@pytest.fixture(scope="module", params=["transformer", "kernel forest"])
def model(
    request: pytest.FixtureRequest, study_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("model") / "run"
    if request.param == "transformer":
        assert train(study_dir, folder) == 0
        return folder
    data = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    args = ("--metadata-column", "ph", "--folds", 3, "--output-dir", folder)
    assert aam("train", *data, *args, "--members", *request.param.split()) == 0
    return folder


def predict(store: Path, model: Path, output: Path, *args: object) -> int:
    given = ("--model", model, "--table", store, "--output", output, "--batch-size", 5)
    return aam("predict", *given, "--device", "cpu", *args)


def all_shards(store: Path, model: Path, output: Path, *args: object) -> Path:
    for number in range(1, COUNT + 1):
        assert predict(store, model, output, "--shard", f"{number}/{COUNT}", *args) == 0
    return output.with_name(f"{output.name}.shards")


@pytest.mark.parametrize(("samples", "batch"), [(36, 5), (8, 1), (7, 2), (1000, 32)])
def test_shards_divide_the_samples_at_batches(samples: int, batch: int) -> None:
    parts = [Shard(number, COUNT).rows(samples, batch) for number in range(1, COUNT + 1)]
    assert [row for part in parts for row in part] == list(range(samples))
    assert all(part.start % batch == 0 for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2 * batch


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "1/0", "a/b", "1/1000000", "-1/4", "1.5/4"])
def test_an_invalid_shard_is_refused(text: str, tmp_path: Path) -> None:
    args = ("--table", tmp_path, "--model", tmp_path, "--output", tmp_path / "p.tsv")
    assert aam("predict", *args, "--shard", text) == UsageError.status


def assert_same_table(found: Path, expected: Path, model: Path) -> None:
    """Numbers of a network may differ by rounding, those of other members not."""
    if "transformer" not in model_folder.read(model).members:
        assert found.read_bytes() == expected.read_bytes()
    pd.testing.assert_frame_equal(read(found), read(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.medium
def test_merged_shards_are_the_table_of_one_process(
    store: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    whole, merged = tmp_path / "whole.tsv", tmp_path / "merged.tsv"
    assert predict(store, model, whole) == 0
    folder = all_shards(store, model, merged)
    assert not merged.exists()
    assert sorted(p.name for p in folder.glob("*.tsv")) == [f"{k}-of-4.tsv" for k in range(1, 5)]
    assert aam("merge", "--output", merged) == 0
    assert_same_table(merged, whole, model)
    assert "36 samples" in capsys.readouterr().err
    assert aam("merge", "--output", merged) == CannotCreate.status


def test_embeddings_of_shards_are_those_of_one_process(
    store: Path, study_dir: Path, tmp_path: Path
) -> None:
    assert train(study_dir, tmp_path / "run") == 0
    args = ("--model", tmp_path / "run", "--table", store, "--batch-size", 5, "--device", "cpu")
    assert aam("embed", *args, "--output-dir", tmp_path / "whole") == 0
    for number in range(1, COUNT + 1):
        shard = ("--shard", f"{number}/{COUNT}")
        assert aam("embed", *args, "--output-dir", tmp_path / "parts", *shard) == 0
    assert aam("merge", "--output", tmp_path / "parts" / "embeddings.tsv") == 0
    whole, merged = (tmp_path / name / "embeddings.tsv" for name in ("whole", "parts"))
    assert_same_table(merged, whole, tmp_path / "run")


@pytest.mark.medium
def test_a_complete_shard_is_kept_and_a_broken_one_computed_again(
    store: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "p.tsv"
    folder = all_shards(store, model, output)
    first, second = folder / "1-of-4.tsv", folder / "2-of-4.tsv"
    times = first.stat().st_mtime_ns
    content = second.read_bytes()
    second.write_bytes(content[: len(content) // 2])
    assert aam("merge", "--output", output) == DataError.status
    assert not output.exists()
    capsys.readouterr()
    assert predict(store, model, output, "--shard", "1/4") == 0
    assert "Shard 1/4 is complete" in capsys.readouterr().err
    assert first.stat().st_mtime_ns == times
    assert predict(store, model, output, "--shard", "2/4") == 0
    assert second.read_bytes() == content
    assert aam("merge", "--output", output) == 0


@pytest.mark.medium
def test_shards_of_different_runs_are_not_merged(
    store: Path, model: Path, study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "p.tsv"
    assert aam("merge", "--output", output) == MissingInput.status
    folder = all_shards(store, model, output)
    (folder / "3-of-4.tsv").rename(tmp_path / "moved")
    capsys.readouterr()
    assert aam("merge", "--output", output) == MissingInput.status
    assert "run the command with --shard 3/4" in " ".join(capsys.readouterr().err.split())
    assert predict(store, model, output, "--shard", "3/5") == CannotCreate.status
    assert "--shard 3/5, and" in (printed := " ".join(capsys.readouterr().err.split()))
    assert "has parts of 4; give the same number" in printed
    other = tmp_path / "other"
    assert train(study_dir, other, "--seed", 5) == 0
    assert predict(store, other, output, "--shard", "1/4") == CannotCreate.status
    assert predict(store, other, output, "--shard", "3/4") == 0
    capsys.readouterr()
    assert aam("merge", "--output", output) == DataError.status
    assert "have different files for --model" in " ".join(capsys.readouterr().err.split())
    shutil.copy(folder / "1-of-4.tsv", folder / "1-of-7.tsv")
    assert aam("merge", "--output", output) == DataError.status
    assert "parts of 4 and of 7" in " ".join(capsys.readouterr().err.split())
    assert not output.exists()


@pytest.mark.medium
def test_a_copy_of_another_shard_is_not_merged(
    store: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    whole, output = tmp_path / "whole.tsv", tmp_path / "p.tsv"
    assert predict(store, model, whole) == 0
    folder = all_shards(store, model, output)
    for first in folder.glob("1-of-4*"):
        shutil.copy(first, folder / first.name.replace("1-of-4", "2-of-4"))
    capsys.readouterr()
    assert aam("merge", "--output", output) == MissingInput.status
    assert "Shards are missing or incomplete: 1 (2) of 4 in" in " ".join(
        capsys.readouterr().err.split()
    )
    assert predict(store, model, output, "--shard", "2/4") == 0
    assert aam("merge", "--output", output) == 0
    assert_same_table(output, whole, model)


@pytest.mark.medium
def test_shards_of_different_options_are_not_merged(
    store: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    output = tmp_path / "p.tsv"
    all_shards(store, model, output)
    more = ("--overwrite", "--prediction-passes", 2)
    assert predict(store, model, output, "--shard", "3/4", *more) == 0
    capsys.readouterr()
    assert aam("merge", "--output", output) == DataError.status
    assert "have different values of --prediction-passes" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not output.exists()


@pytest.mark.medium
def test_more_shards_than_batches_are_refused(store: Path, model: Path, tmp_path: Path) -> None:
    assert predict(store, model, tmp_path / "p.tsv", "--shard", "9/9") == UsageError.status
