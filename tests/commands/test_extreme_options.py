"""Options at their extremes: a value is refused in one sentence, or computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aam.data.table import rarefy
from tests.support.commands import aam
from tests.support.hostile_study import DATA, USAGE, check_refusal

EXTREMES = [
    ("example", "--samples 1000000000000", "give 2 to 10000000"),
    ("example", "--samples 10000000 --asvs 10000000 --length 10000", "does not fit in memory"),
    ("example", "--asvs 10000000 --samples 50 --length 10000 --subjects 5", "does not fit in mem"),
    ("example", "--depth 1000000000000000000000", "--depth 1000000000000000000000"),
    ("unifrac", "--max-memory-gb 1e308", "--max-memory-gb 1e+308"),
    ("unifrac", "--max-memory-gb nan", "--max-memory-gb nan"),
    ("train", "--test-size 1e300", "--test-size 1e+300"),
]


@pytest.mark.parametrize(("command", "args", "sentence"), EXTREMES)
def test_extremes(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, args: str, sentence: str
) -> None:
    given: dict[str, list[object]] = {
        "example": ["--output-dir", folder / "out"],
        "unifrac": ["--table", folder / "table.tsv", "--tree", folder / "tree.nwk",
                    "--output", folder / "out.tsv"],
        "train": ["--table", folder / "table.tsv", "--metadata", folder / "metadata.tsv",
                     "--metadata-column", "x", "--output-dir", folder / "out"],
    }  # fmt: skip
    check_refusal(capsys, aam(command, *given[command], *args.split()), USAGE, sentence)
    assert not list(folder.glob("out*"))


@pytest.mark.parametrize("folds", ["1000", "1000000000000000000000000"])
def test_more_folds_than_samples(
    folder: Path, capsys: pytest.CaptureFixture[str], folds: str
) -> None:
    given = ["--table", folder / "table.tsv", "--metadata", folder / "metadata.tsv"]
    given += ["--metadata-column", "x", "--output-dir", folder / "out"]
    check_refusal(capsys, aam("train", *given, "--folds", folds), DATA, "give --folds 2 to 3")


def test_rarefaction_of_a_billion_reads() -> None:
    """Counts above 10^9 a sample are drawn as smaller ones are: in proportion, without return."""
    counts = np.array([2**31 - 1, 2**31 - 1, 10, 0], dtype=np.int32)
    drawn = rarefy(counts, 20_000, "s", seed=1, draw=0)
    assert drawn.sum() == 20_000
    assert drawn[3] == 0
    assert abs(drawn[0] - 10_000) < 5 * np.sqrt(5_000)
    assert np.array_equal(drawn, rarefy(counts, 20_000, "s", seed=1, draw=0))
    few = np.array([10**9, 4, 3], dtype=np.int32)
    kept = rarefy(few, 10**9 + 5, "s", seed=1, draw=0)
    assert kept.sum() == 10**9 + 5
    assert (kept <= few).all()
