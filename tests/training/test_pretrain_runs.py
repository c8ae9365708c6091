"""Runs of `aam pretrain`: files, metrics, groups, and distances instead of a phylogeny."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam.training import checkpoints
from tests.support.commands import aam, pretrain, read
from tests.support.runs import FILES, check_metrics, check_one_side, columns, files


@pytest.fixture(scope="module")
def matrix(
    study_dir: Path, tree: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "unweighted.tsv"
    assert aam("unifrac", "--table", study_dir / "table.biom", *tree, "--output", path) == 0
    return path


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ("", ("unifrac", "nucleotide")),
        ("--penalty 0", ("nucleotide",)),
        ("--nuc-penalty 0", ("unifrac",)),
        ("--penalty 0 --nuc-penalty 0 --count-penalty 1", ("count",)),
        ("--nucleotide-patch 3 --token-limit 9", ("unifrac", "nucleotide")),
        ("--rarefy-depth 0 --no-rarefy-each-epoch --max-bp 31", ("unifrac", "nucleotide")),
        *(
            (f"--unifrac-metric {metric}", ("unifrac", "nucleotide"))
            for metric in ("weighted", "generalized", "faith_pd")
        ),
    ],
)
def test_pretrain(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path, args: str, parts: tuple[str, ...]
) -> None:
    assert pretrain(study_dir, tmp_path / "run", *tree, *args.split()) == 0
    assert files(tmp_path / "run") == FILES
    check_metrics(tmp_path / "run/metrics.csv", columns(*parts))
    embeddings = read(tmp_path / "run/embeddings.tsv")
    assert list(embeddings.columns) == ["sample-id", *(f"e{i}" for i in range(8))]
    assert np.isfinite(embeddings.iloc[:, 1:].to_numpy()).all()
    config = checkpoints.read(tmp_path / "run/checkpoints/last.ckpt").config
    assert (config.command, config.target) == ("pretrain", None)


def test_a_matrix_in_any_order_serves_as_the_tree_does(
    study_dir: Path, tree: tuple[str, Path], matrix: Path, tmp_path: Path
) -> None:
    table = pd.read_csv(matrix, sep="\t", index_col=0).iloc[::-1, ::-1]
    table.to_csv(tmp_path / "turned.tsv", sep="\t", index_label="")
    whole = ("--rarefy-depth", 0)
    assert pretrain(study_dir, tmp_path / "tree", *tree, *whole) == 0
    given = ("--unifrac-matrix", tmp_path / "turned.tsv")
    assert pretrain(study_dir, tmp_path / "matrix", *given, *whole) == 0
    one, two = (read(tmp_path / name / "metrics.csv") for name in ("tree", "matrix"))
    for name in ("train_unifrac", "val_unifrac", "train_nucleotide"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-4)


def test_groups_stay_together_in_pretraining(
    study_dir: Path, tree: tuple[str, Path], tmp_path: Path
) -> None:
    grouped = ("--metadata", study_dir / "metadata.tsv", "--group-column", "subject")
    assert pretrain(study_dir, tmp_path, *tree, *grouped) == 0
    splits = read(tmp_path / "splits.tsv")
    check_one_side(splits)
    assert set(splits["split"]) == {"train", "validation"}
