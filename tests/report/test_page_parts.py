"""Parts of the page: methods, copy buttons, confusions, intervals, ASVs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aam.data.table import read_table
from aam.evaluation.metrics import ScoredPredictions
from aam.report.asvs import asv_name
from aam.report.methods import paragraph
from aam.report.predictions import (
    agreement_picture,
    calibration_picture,
    classes_table,
    confusion_picture,
    worst_table,
)
from aam.report.run import ReportInput, read_run
from tests.support.commands import aam
from tests.support.report_pages import browse, downloads, in_browser, report


def test_methods_have_condition_rarefaction_and_encoder(run_folder: Path) -> None:
    record = json.loads((run_folder / "run.json").read_text())
    record |= {"rarefy_depth": 2277, "members": ["transformer"]}
    record["options"] |= {"pretrained_encoder": "encoder", "freeze_base": True}
    record["options"]["target"]["where"] = "site=gut"
    (run_folder / "run.json").write_text(json.dumps(record))
    text = paragraph(read_run(run_folder))
    assert "samples where site=gut with aam" in text
    assert "For the transformer, samples were rarefied to 2,277 reads. " in text
    assert "was pretrained without labels, and its weights were frozen. " in text
    (run_folder / "run.json").write_text(json.dumps(record | {"members": ["kernel"]}))
    text = paragraph(read_run(run_folder))
    assert "rarefied" not in text
    assert "encoder" not in text


@pytest.mark.medium
def test_the_buttons_copy_the_commands(page: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page("numbers"), encoding="utf-8")
    dom = browse(file, (1280, 900), "--dump-dom").stdout
    assert dom.count('<button type="button">Copy</button></pre>') == dom.count("<pre") > 2


def test_confusions_are_percentages_of_the_true_class(run_folder: Path) -> None:
    actual = np.array([0] * 8 + [1] * 2)
    predicted = np.array([0] * 6 + [1] * 2 + [1, 1])
    scored = ScoredPredictions(actual, predicted, (), ("a", "b"))
    drawing = confusion_picture(ReportInput(replace(read_run(run_folder), partitions=scored)))
    assert drawing is not None
    texts = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert texts == ["75%", "6", "25%", "2", "0%", "0", "100%", "2"]


def test_the_first_of_several_repeats_is_named(run_folder: Path) -> None:
    """Figures and tables of samples show one prediction of each sample."""
    actual, rng = np.tile(np.arange(20) % 2, 2), np.random.default_rng(0)
    p_N = rng.random(40)
    probabilities = np.stack([1 - p_N, p_N], axis=1)
    predicted, folds = probabilities.argmax(axis=1), ("1", "2") * 20
    names = ("1",) * 20 + ("2",) * 20
    partitions = ScoredPredictions(
        actual, predicted, folds, ("a", "b"), probabilities, repeats=names
    )
    run = replace(
        read_run(run_folder),
        partitions=partitions,
        partition_ids=tuple(f"S{k}" for k in range(20)) * 2,
    )
    for draw in (confusion_picture, calibration_picture):
        drawing = draw(ReportInput(run))
        assert drawing is not None and "of the first repeat" in drawing.caption
        drawing = draw(ReportInput(replace(run, partitions=partitions.first)))
        assert drawing is not None and "repeat" not in drawing.caption
    for tabulate in (classes_table, worst_table):
        table = tabulate(ReportInput(run))
        assert table is not None and table.title.endswith(", first repeat")


def test_prediction_intervals_are_lines(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert run.scored is not None
    limits = run.scored.predicted[:, None] + np.array([-0.5, 0.25])
    drawing = agreement_picture(ReportInput(replace(run, limits=limits)))
    assert drawing is not None
    (drawn, _) = drawing.figure.axes[0].collections
    widths = [np.ptp(path.vertices[:, 1]) for path in drawn.get_paths()]
    assert widths == pytest.approx([0.75] * len(run.sample_ids))


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"feature-id": "ACGT" * 30}, "5622e692"),
        ({"feature-id": "acgt" * 30, "taxon": "d__Bacteria; f__Lachno; g__"}, "f__Lachno 5622e692"),
        ({"feature-id": "5622e692" * 4, "taxon": "g__Blautia; s__x"}, "g__Blautia; s__x 5622e692"),
        ({"feature-id": "an id of other letters", "taxon": ""}, "an id of other …"),
    ],
)
def test_an_asv_has_a_short_name(row: dict[str, str], name: str) -> None:
    assert asv_name(row) == name


def write_importance(run_folder: Path, study_folder: Path) -> None:
    table = read_table(study_folder / "study" / "table.biom")
    rows = [f"{name}\t{0.5 - k}\t0.1" for k, name in enumerate(table.feature_ids[:20])]
    header = "feature-id\teffect\tprevalence"
    (run_folder / "importance.tsv").write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.medium
def test_leading_asvs_are_drawn(study_folder: Path, run_folder: Path) -> None:
    write_importance(run_folder, study_folder)
    text = report(run_folder)
    assert 'id="part-asvs"' in text
    assert "Heat map of 15 ASVs." in text
    files, table = downloads(text), read_table(study_folder / "study" / "table.biom")
    assert {"importance.svg", "abundance.svg"} < set(files)
    # The table has short names; their whole ids are copied, and in the TSV.
    rows = [line.split("\t") for line in files["asvs-by-importance.tsv"].splitlines()]
    assert [row[-1] for row in rows[1:]] == list(table.feature_ids[:20])
    assert all(f'title="{name}" class="id"' in text for name in table.feature_ids[:20])
    # The option that adds names stands before the table.
    assert text.index("--taxonomy") < text.index(f'title="{table.feature_ids[0]}"')
    # Equal values of a target leave no empty column.
    predictions = (run_folder / "predictions.tsv").read_text().splitlines()
    actual = predictions[0].split("\t").index("actual")
    rows = [line.split("\t") for line in predictions[1:]]
    for number, row in enumerate(rows):
        row[actual] = repr([0.1, -0.1, 0.6, 0.1, -0.5][number % 5])
    lines = [predictions[0], *("\t".join(row) for row in rows)]
    (run_folder / "predictions.tsv").write_text("\n".join(lines) + "\n")
    assert "Heat map of" in report(run_folder)
    record = json.loads((run_folder / "run.json").read_text())
    record["inputs"]["--table"]["path"] = str(run_folder / "lost.biom")
    (run_folder / "run.json").write_text(json.dumps(record))
    assert "abundance.svg" not in downloads(report(run_folder))


@pytest.mark.medium
def test_a_training_ends_in_a_report(
    study_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, run = study_folder / "study", tmp_path / "run"
    args = ["--metadata", study / "metadata.tsv", "--metadata-column", "ph", "--members", "kernel"]
    assert aam("train", "--table", study / "table.biom", *args, "--output-dir", run) == 0
    assert f"Model and report: {run / 'report.html'}" in capsys.readouterr().err.splitlines()
    text = (run / "report.html").read_text(encoding="utf-8")
    tiles = dict(re.findall(r"<dt>([^<]*)</dt>.*?<dd class=\"note\">([^<]*)</dd>", text))
    assert all(" to " in tiles[name] for name in ("R²", "MAE"))
    assert {"samples.svg", "ordination.svg", "importance.svg", "abundance.svg"} < set(
        downloads(text)
    )
    assert "From 48 to 96 samples the R² changes by" in text
    points = text[text.index('id="ordination-points"') :].partition("</svg>")[0]
    assert points.count("<title>S") == 120
    assert "Vertical lines: prediction intervals." in text


@pytest.mark.medium
def test_the_verdict_and_what_follows_stand_on_the_first_screen(
    study_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, run = study_folder / "study", tmp_path / "run"
    # Few samples of few subjects: the interval supports two digits, not the three of a table.
    lines = (study / "metadata.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "few.tsv").write_text("".join(lines[:30]))
    args = [study / "table.biom", tmp_path / "few.tsv", "ph", "--members", "kernel"]
    assert aam("train", *args, "--group-column", "subject", "--output-dir", run) == 0
    text = (run / "report.html").read_text(encoding="utf-8")
    last = "[...document.querySelectorAll('.verdict, .next + pre, .top figure')]"
    ends = f"{last}.map(part => part.getBoundingClientRect().bottom)"
    assert in_browser(text, tmp_path, f"Math.round(Math.max(...{ends}))", 1280) < 800
    assert in_browser(text, tmp_path, f"{last}.length", 1280) == 3
    # In a narrow window an interval as the value of a tile is one line.
    wide = re.sub(r'(<dd class="value">)[^<]*', r"\1-0.12 to 0.86", text)
    lines = "[...document.querySelectorAll('.tiles .value')].map(value => value.scrollHeight)"
    fits = "Math.max(...[...document.querySelectorAll('.tiles .value')].map(value => "
    assert in_browser(wide, tmp_path, f"Math.max(...{lines})", 500) < 30
    assert in_browser(wide, tmp_path, f"{fits}value.scrollWidth - value.clientWidth))", 500) <= 0
    head = text.partition("<main>")[0]
    assert f"aam evaluate --model {run} --table TABLE" in head
    assert re.findall(r"<dt>([^<]*)</dt>", head) == ["R²", "MAE", "samples"]
    # One rounding in tile, sentence and console.
    tile = re.search(r'R²</dt><dd class="value">([-.0-9]+)</dd><dd class="note">([^<]*)<', head)
    assert tile is not None and len(tile[1].partition(".")[2]) == 2
    assert f"R² {tile[1]} on held-out samples" in head
    assert f"{tile[1]} ({tile[2]})" in capsys.readouterr().out


@pytest.mark.medium
def test_the_filter_finds_asvs_beyond_the_first(
    study_folder: Path, run_folder: Path, tmp_path: Path
) -> None:
    write_importance(run_folder, study_folder)
    name = read_table(study_folder / "study" / "table.biom").feature_ids[18]
    typed = f"box.value = '{name.lower()}', box.dispatchEvent(new Event('input'))"
    rows = "[...document.querySelectorAll('.filtered tbody tr')].filter(row => row.offsetHeight)"
    opened = "document.querySelectorAll('details').forEach(part => { part.open = true; })"
    shown = f"(box = document.querySelector('.filter'), {opened}, FIRST, {rows}.length)"
    text = report(run_folder)
    assert in_browser(text, tmp_path, shown.replace("FIRST, ", ""), 1280) == 15
    assert in_browser(text, tmp_path, shown.replace("FIRST", typed), 1280) == 1
