"""Comparison of predicted samples with the training data of the model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import biom
import numpy as np
import pandas as pd
import pytest

from aam import AamWarning, load
from aam.contract.errors import DataError, UsageError
from aam.contract.options.commands.studies import Example
from aam.contract.options.groups import DeviceOptions
from aam.data.simulation import simulate, write_study
from aam.members.model_file import read_trained
from benchmarks.unlike_training import unlike
from tests.support.commands import aam, read, train
from tests.support.models import Editable, rewrite

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the samples of one site, with a validation set."""
    folder = tmp_path_factory.mktemp("model")
    assert train(study_dir, folder, "--where", "site=site-1", "--batch-size", 4) == 0
    return folder


def predict(model: Path, table: Path, output: Path, *args: object) -> pd.DataFrame:
    given = ("--model", model, "--table", table, "--output", output, "--device", "cpu")
    assert aam("predict", *given, "--overwrite", *args) == 0
    return read(output)


def one_line(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_an_output_that_is_an_input_is_refused(
    study_dir: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    table = Path(shutil.copy(study_dir / "table.biom", tmp_path))
    before = table.read_bytes()
    (tmp_path / "link.biom").symlink_to(table)
    given = ("--model", model, "--table", table, "--output", tmp_path / "link.biom")
    assert aam("predict", *given, "--overwrite") == UsageError.status
    assert "The output would replace an input: --table and --output are" in one_line(capsys)
    assert aam("prepare", "--table", study_dir / "table.biom", "--output", table, "--overwrite") > 0
    assert table.read_bytes() == before


def test_messages_without_a_reader_do_not_end_a_command(
    study_dir: Path, model: Path, tmp_path: Path
) -> None:
    """As with `2>&1 | head -0`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    given = ("--model", model, "--table", study_dir / "table.biom", "--output", tmp_path / "p.tsv")
    line = [sys.executable, "-m", "aam.cli", "predict", *map(str, given), "--device", "cpu"]
    assert subprocess.run(line, stderr=write_end, check=False).returncode == 0
    os.close(write_end)
    assert len(read(tmp_path / "p.tsv")) == 36


def test_samples_that_trained_the_model_are_marked_and_not_scored(
    study_dir: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    split = read(model / "splits.tsv").set_index("sample-id")["split"]
    trained, validated = (split == "train").sum(), (split == "validation").sum()
    capsys.readouterr()
    found = predict(model, study_dir / "table.biom", tmp_path / "p.tsv")
    printed = one_line(capsys)
    assert f"warning: {trained} of 36 samples trained this model" in printed
    assert f"{validated} of 36 samples chose its epoch" in printed
    marked = found.set_index("sample-id")["split"]
    assert marked[split.index].tolist() == split.tolist()
    assert (marked == "new").sum() == 36 - len(split)
    scored = ("--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph")
    assert aam("evaluate", "--predictions", tmp_path / "p.tsv", *scored) == 0
    assert f"Scored: {36 - len(split)} new rows" in capsys.readouterr().err


@pytest.fixture(scope="module")
def other_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with other sequences."""
    folder = tmp_path_factory.mktemp("other")
    options = Example(
        output_dir=folder, samples=20, asvs=90, length=60, richness=25, depth=900, sites=3,
        subjects=10, seed=8,
    )  # fmt: skip
    write_study(simulate(options), options)
    return folder / "table.biom"


@pytest.fixture(scope="module")
def ensemble(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble of the samples of one site."""
    folder = tmp_path_factory.mktemp("ensemble") / "run"
    data = ("--table", study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    args = ("--metadata-column", "ph", "--where", "site=site-1", "--folds", 3)
    assert aam("train", *data, *args, "--members", "kernel", "forest", "--output-dir", folder) == 0
    return folder


@pytest.mark.medium
def test_samples_that_trained_an_ensemble_are_marked(
    study_dir: Path, ensemble: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The final members are fitted to the samples of all folds."""
    trained = set(read(ensemble / "splits.tsv")["sample-id"])
    capsys.readouterr()
    found = predict(ensemble, study_dir / "table.biom", tmp_path / "p.tsv")
    printed = one_line(capsys)
    assert f"warning: {len(trained)} of 36 samples trained this model" in printed
    assert "trained on samples with site=site-1 (--where)" in printed
    assert "Richness at " in printed
    marked = found.set_index("sample-id")["split"]
    assert set(marked.index[marked == "train"]) == trained
    assert set(marked) == {"train", "new"}
    own = found[found["split"] == "train"]
    assert (own["known_reads"] == 1).all()
    assert (own["unlike_training"] == "yes").mean() < 0.2
    with pytest.warns(AamWarning, match=f"{len(trained)} of 36 samples trained this model"):
        in_python = load(ensemble).predict(study_dir / "table.biom")
    assert list(in_python.columns) == list(found.columns[1:])
    assert in_python["distance"].to_numpy() == pytest.approx(found["distance"].to_numpy())


@pytest.mark.parametrize("kind", ["ensemble", "model"])
def test_another_study_is_unlike_the_training_samples(
    request: pytest.FixtureRequest, other_study: Path, tmp_path: Path, capsys: Capture, kind: str
) -> None:
    trained: Path = request.getfixturevalue(kind)
    capsys.readouterr()
    given = ("--model", trained, "--table", other_study, "--device", "cpu")
    assert aam("predict", *given, "--output", tmp_path / "p.tsv") == DataError.status
    assert "No ASV of the table occurs in the training data" in one_line(capsys)
    assert not (tmp_path / "p.tsv").exists()
    with pytest.raises(DataError, match="No ASV of the table"):
        load(trained).predict(other_study)
    found = predict(trained, other_study, tmp_path / "p.tsv", "--force")
    printed = one_line(capsys)
    assert set(found["split"]) == {"new"}
    assert (found["known_reads"] == 0).all()
    assert "Known ASVs: 0.0%" in printed
    assert "another region, primer or direction" in printed
    assert (found["unlike_training"] == "yes").all()
    assert "warning: 20 of 20 samples are unlike the training samples" in printed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("landmarks/asvs", lambda found: found + 10**6),
        ("train_N", lambda found: found.astype(np.float32)),
        ("frequencies_L4", lambda found: found[:, :3]),
        ("tokens", lambda found: found + 9),
        ("limit", lambda found: -1.0),
    ],
)
def test_damaged_training_data_are_refused(
    ensemble: Path, tmp_path: Path, name: str, change: Callable[[Any], Any]
) -> None:
    def damage(content: Editable) -> None:
        numbers, arrays = content.facts["training"], content.arrays["training"]
        place = numbers if name in numbers else arrays
        place[name] = change(place[name])

    model = rewrite(ensemble, tmp_path / "changed", damage)
    with pytest.raises(DataError, match="The model is damaged: "):
        read_trained(model, DeviceOptions())


def test_the_condition_of_the_training_is_printed_or_applied(
    study_dir: Path, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    table, metadata = study_dir / "table.biom", study_dir / "metadata.tsv"
    assert len(predict(model, table, tmp_path / "all.tsv")) == 36
    assert "trained on samples with site=site-1 (--where)" in one_line(capsys)
    found = predict(model, table, tmp_path / "some.tsv", "--metadata", metadata)
    site = read(metadata).set_index("sample-id")["site"]
    assert set(found["sample-id"]) == set(site.index[site == "site-1"])
    assert f"Samples with site=site-1: {len(found)} of 36." in one_line(capsys)
    with pytest.warns(AamWarning, match=r"samples with site=site-1 \(--where\)"):
        assert len(load(model).predict(table)) == 36


@pytest.mark.medium
def test_a_sample_of_any_fold_trained_the_model(
    study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert train(study_dir, tmp_path / "run", "--folds", 3, "--test-size", 0) == 0
    capsys.readouterr()
    found = predict(tmp_path / "run", study_dir / "table.biom", tmp_path / "p.tsv")
    assert "35 of 36 samples trained this model" in one_line(capsys)
    assert found["split"].tolist().count("train") == 35
    assert (found["known_reads"][found["split"] == "train"] == 1).all()


def test_shorter_sequences_of_the_same_region_are_recognized(
    study_dir: Path, tmp_path: Path, capsys: Capture
) -> None:
    """A table of longer reads trains the model, and the same reads without their ends are new.

    Reads of one nucleotide less that have their beginning alone in common are not the same.
    """
    table = biom.load_table(str(study_dir / "table.biom"))
    tail = np.random.default_rng(0).choice(list("ACGT"), (table.shape[0], 30))
    ids = {
        name: name + "".join(end) for name, end in zip(table.ids("observation"), tail, strict=True)
    }
    swapped = str.maketrans("ACGT", "CATG")
    for name, length in (("longer", 90), ("shorter", 75), ("others", 89)):
        cut = {asv: whole[:length] for asv, whole in ids.items()}
        if name == "others":
            cut = {asv: dna[:80] + dna[80:].translate(swapped) for asv, dna in cut.items()}
        made = table.update_ids(cut, axis="observation", inplace=False)
        with biom.util.biom_open(str(tmp_path / f"{name}.biom"), "w") as file:
            made.to_hdf5(file, "test")
    assert train(study_dir, tmp_path / "run", "--table", tmp_path / "longer.biom") == 0
    capsys.readouterr()
    found = predict(tmp_path / "run", tmp_path / "shorter.biom", tmp_path / "p.tsv")
    printed = one_line(capsys)
    assert "compared over 75 nucleotides (here they have 75, in training 90)" in printed
    assert found["known_reads"].min() > 0.9
    assert "another region" not in printed
    assert "Only 0 of " in printed
    others = ("--model", tmp_path / "run", "--table", tmp_path / "others.biom", "--device", "cpu")
    assert aam("predict", *others, "--output", tmp_path / "q.tsv") == DataError.status
    assert "No ASV of the table occurs in the training data" in one_line(capsys)


def test_a_condition_that_no_sample_meets(study_dir: Path, model: Path, tmp_path: Path) -> None:
    metadata = (study_dir / "metadata.tsv").read_text().replace("site-1", "site-9")
    (tmp_path / "m.tsv").write_text(metadata)
    given = ("--model", model, "--table", study_dir / "table.biom", "--device", "cpu")
    args = ("--output", tmp_path / "p.tsv", "--metadata", tmp_path / "m.tsv")
    assert aam("predict", *given, *args) == DataError.status


@pytest.mark.medium
def test_held_out_samples_of_a_small_study_are_like_the_training_samples() -> None:
    parts, warned = zip(*(fold for seed in (0, 1, 2) for fold in unlike(30, 30, seed)), strict=True)
    assert np.mean(parts) < 0.1  # 5 % are expected, with a standard error of 3 %
    assert not any(warned)  # two of ten samples in two folds are chance
