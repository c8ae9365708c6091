"""The page of `aam inspect --report`: real and hostile studies, drawn by a browser."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import contingency, spearmanr

from aam.contract.errors import CannotCreate, DataError, UsageError
from aam.data.study_inspection import MetadataColumn
from aam.report.inspection import association, association_picture, missing_picture
from tests.support.commands import aam
from tests.support.report_pages import (
    Outline,
    assert_own_script_alone,
    chromium,
    downloads,
    scroll_width,
)

EVIL = "<script>alert(1)</script>"


def pictures(text: str) -> set[str]:
    return {name.removesuffix(".svg") for name in downloads(text) if name.endswith(".svg")}


def write_study(folder: Path) -> tuple[Path, Path]:
    """Write a study with ids and names of markup, many columns, and columns of one value."""
    chance = random.Random(0)
    ids = [f"s{k}{EVIL}" for k in range(40)]
    asvs = ["".join(chance.choices("ACGT", k=40)) for _ in range(12)]
    rows = [[name, *(str(chance.choice((0, 1, 30, 900))) for _ in ids)] for name in asvs]
    lines = ["\t".join(cells) for cells in (["#OTU ID", *ids], *rows)]
    (folder / "t.tsv").write_text("\n".join(lines) + "\n")
    numbers, constant = [f"n{k}" for k in range(30)], [f"one{k}" for k in range(90)]
    columns = ["subject", EVIL, "a long name " * 20, "id2", "\u05d2\u05d9\u05dc", "none"]
    columns += ["huge", "denormal", "reads"]
    lines = ["\t".join(["sample-id", *(name.strip() for name in columns), *numbers, *constant])]
    for k, name in enumerate(ids[:-4]):
        cells = [f"p{k // 2}", EVIL if k % 3 else "&amp;", "long " * 30 + "ab"[k % 2], f"x{k}"]
        cells += [str(k % 5), "", f"{(-1) ** k * (1e308 + k * 1e306)}", f"{k * 1e-322}"]
        cells += ["inf" if k % 3 else str(k), *(f"{chance.random()}" for _ in numbers)]
        cells += ["z" for _ in constant]
        lines.append("\t".join([name, *cells]))
    (folder / "m.tsv").write_text("\n".join(lines) + "\n")
    return folder / "t.tsv", folder / "m.tsv"


@pytest.mark.medium
def test_a_study_with_a_target_is_one_page(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [study_dir / "table.biom", "--tree", study_dir / "tree.nwk"]
    args += ["--metadata", study_dir / "metadata.tsv", "--metadata-column", "ph", "--json"]
    assert aam("inspect", *args) == 0
    printed = capsys.readouterr().out
    page = tmp_path / "new" / "page.html"
    assert aam("inspect", *args, "--report", page) == 0
    assert capsys.readouterr().out == printed
    text = page.read_text()
    Outline(text)
    assert_own_script_alone(text)
    assert {"reads", "prevalence", "overlap", "target", "column-0"} <= pictures(text)
    samples = json.loads(printed)["findings"][0]["text"].split()[0]
    assert f'<dd class="value">{samples}</dd>' in text
    assert re.search(r"rarefaction depth \(auto\): [\d,]+", text)
    assert "have several similar samples each" in text
    assert "5-fold cross-validation repeated 5 times," in text
    # An existing page is replaced.
    assert aam("inspect", args[0], "--report", page) == 0
    assert pictures(page.read_text()) == {"reads", "prevalence"}
    assert "<h2>Metadata</h2>" not in page.read_text()


@pytest.mark.medium
def test_markup_long_names_and_many_columns(tmp_path: Path) -> None:
    table, metadata = write_study(tmp_path)
    page = tmp_path / "page.html"
    args = (table, "--metadata", metadata, "--metadata-column", EVIL, "--report", page)
    assert aam("inspect", *args) == 0
    text = page.read_text()
    Outline(text)
    assert_own_script_alone(text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert pictures(text) == {
        "reads", "prevalence", "overlap", "target", "missing", "associations",
        *(f"column-{k}" for k in range(37)),
    }  # fmt: skip
    for sentence in ("Only one value (90): one0, one1", "Empty (1): none", "(1): id2"):
        assert sentence in text
    assert "samples of the table with metadata: 36 of 40" in text
    assert re.search(r"<bdi>reads</bdi>.*<bdi>\d+ to \d+, median \d+ in a sample", text)
    for dark in (False, True):
        assert chromium(page, tmp_path / "page.png", (1280, 2400), dark) == ""
    assert scroll_width(text, tmp_path) <= 500


def test_a_refused_table_has_a_page_of_findings(tmp_path: Path) -> None:
    _, metadata = write_study(tmp_path)
    (tmp_path / "empty.tsv").write_text("#OTU ID\ts1\ts2\n")
    page = tmp_path / "page.html"
    args = (tmp_path / "empty.tsv", "--metadata", metadata, "--metadata-column", "subject")
    assert aam("inspect", *args, "--report", page) == DataError.status
    text = page.read_text()
    assert "errors would stop other commands" in text
    assert "The feature table has no reads" in text
    assert "reads" not in pictures(text)


def test_a_page_that_cannot_be_written_stops_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, metadata = write_study(tmp_path)
    for place, error in ((metadata, CannotCreate), (tmp_path, CannotCreate), (table, UsageError)):
        assert aam("inspect", table, "--report", place) == error.status
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.splitlines()) == 1


def test_missing_values_and_columns_that_go_together_are_drawn() -> None:
    chance = np.random.default_rng(0)
    age, site = chance.normal(50, 9, 90), chance.choice(["a", "b", "c"], 90)
    texts = {
        "age": ("numbers", [f"{value:.3f}" for value in age]),
        "days": ("numbers", ["" if k % 4 == 0 else f"{365 * v:.0f}" for k, v in enumerate(age)]),
        "site": ("categories", site.tolist()),
        "city": ("categories", [name.upper() for name in site]),
        "noise": ("numbers", [f"{value}" for value in chance.normal(size=90)]),
    }
    columns = {
        name: MetadataColumn(name, kind, values, "") for name, (kind, values) in texts.items()
    }
    assert association(columns["age"], columns["days"]) == pytest.approx(1, abs=1e-4)
    assert association(columns["site"], columns["city"]) == pytest.approx(1)
    for name in ("age", "site"):
        assert association(columns[name], columns["noise"]) < 0.3
    # Of two numbers it is Spearman's correlation, of two categories Cramér's V.
    noise = [float(text) for text in columns["noise"].values]
    rho = spearmanr(age, noise)[0]
    assert association(columns["age"], columns["noise"]) == pytest.approx(abs(rho), abs=1e-3)
    half = MetadataColumn("half", "categories", ["x" if k < 45 else "y" for k in range(90)], "")
    table = pd.crosstab(site, np.array(half.values))
    cramer = contingency.association(table, method="cramer")
    assert association(columns["site"], half) == pytest.approx(cramer)
    drawing = association_picture([*columns.values()])
    assert drawing is not None and "site and city 1.00" in drawing.caption
    drawing = missing_picture([*columns.values()])
    assert drawing is not None and "days 26 %" in drawing.description
    assert "1 of 5 columns" in drawing.caption
