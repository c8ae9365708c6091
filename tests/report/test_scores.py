"""Scores in a report: baselines, intervals, worst samples, scores by bin, group and category."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aam.cli import main
from aam.contract.errors import DataError
from aam.data.metrics import compute_metrics
from aam.report.base import ReportInput
from aam.report.content import Tile, tiles
from aam.report.run import read_run
from aam.report.tables import bins_table
from tests.support.report_pages import report


def test_folds_are_overlaid_and_tabled(page: Callable[[str], str]) -> None:
    text = page("classes")
    assert "Thin: 3 folds; thick: their mean." in text
    assert "test in fold 1" in text
    for name in ("fold 1", "fold 3", "mean ± sd", "all samples"):
        assert f'<th scope="row"><bdi>{name}</bdi></th>' in text
    assert "Confusion matrix. " in text
    assert "ROC curves, mean AUC" in text
    assert "AUC: part of the pairs of samples of the same fold" in text
    assert "3-fold cross-validation" in text


@pytest.mark.medium
def test_a_baseline_beside_is_compared(study_folder: Path, run_folder: Path) -> None:
    args = ["--table", str(study_folder / "study" / "table.biom"), "--n-estimators", "20"]
    args += ["--metadata", str(study_folder / "study" / "metadata.tsv"), "--n-jobs", "1"]
    args += ["--metadata-column", "ph", "--output-dir", str(run_folder / "baseline")]
    assert main(["baseline", *args, "--splits", str(run_folder / "splits.tsv")]) == 0
    figures = json.loads((run_folder / "baseline" / "metrics.json").read_text())
    text = report(run_folder)
    r2 = figures["overall"]["r2"]
    row = r'<th scope="row"><bdi>random forest</bdi></th><td><bdi>'
    assert re.search(rf"{row}{r2:.2f}\d? \(-?\d", text)
    own = compute_metrics(read_run(run_folder).scored or pytest.fail("no predictions"))["r2"]
    assert own is not None
    side = "ahead of" if own > r2 else "behind"
    ahead = rf"This model is {side} the random forest by {abs(own - r2):.3f} R² \(95 % "
    assert re.search(ahead, text)
    assert "--member kernel" in text
    assert "--member forest" not in text
    assert main(["baseline", *args, "--seed", "9", "--overwrite"]) == 0
    assert "The random forest was scored on other samples and is not compared." in report(
        run_folder
    )
    assert main(["baseline", *args, "--overwrite", "--metadata-column", "depth"]) == 0
    text = report(run_folder)
    assert "The random forest predicts another column (depth)." in text
    assert ">random forest" not in text


@pytest.mark.medium
def test_worst_samples_and_points_are_named(study_folder: Path) -> None:
    text = report(study_folder / "numbers", "--unit", "pH units")
    found = read_run(study_folder / "numbers")
    assert found.scored is not None
    wrong = np.abs(found.scored.predicted - found.scored.actual)
    worst = found.sample_ids[int(wrong.argmax())]
    table = text[text.index("The 10 worst samples") :]
    assert re.search(rf'<tbody>\s*<tr><th scope="row"><bdi>{worst}</bdi></th>', table)
    for gid, names in (("agreement", found.sample_ids), ("embedding", found.embedded_ids)):
        figure = text[text.index(f'id="{gid}-points"') :].partition("</svg>")[0]
        titles = [title.partition("\n")[0] for title in re.findall("<title>([^<]*)", figure)]
        assert titles == list(names)
    assert "predicted ph (pH units)" in text
    assert f"{wrong.mean():.2f} <small>pH units</small>" in text


def test_scores_by_bin_and_by_group(study_folder: Path, page: Callable[[str], str]) -> None:
    text = page("numbers")
    found = read_run(study_folder / "numbers")
    assert found.scored is not None
    assert "<h3><bdi>By ph</bdi>" in text
    table = bins_table(ReportInput(found))
    assert table is not None
    assert sum(int(row[1]) for row in table.rows) == len(found.scored.actual)
    assert all(f"site: site-{k}" in text for k in (1, 2, 3))


@pytest.mark.medium
def test_a_run_without_embedding_has_scores_by_category(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "embeddings.tsv").unlink()
    assert "There is no embedding in this run folder yet" in report(run_folder)
    record = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps(record | {"members": ["kernel", "forest"]}))
    text = report(run_folder)
    assert "no embedding" not in text
    assert all(f"site: site-{k}" in text for k in (1, 2, 3))
    assert "colour-0" not in text.partition("</style>")[2]
    assert main(["report", "--run-dir", str(run_folder), "--color-by", "sit"]) == DataError.status
    assert "did you mean 'site'?" in capsys.readouterr().err


@pytest.mark.medium
def test_the_headline_names_its_samples(page: Callable[[str], str], run_folder: Path) -> None:
    text = report(run_folder)
    assert "24 validation samples, which did not train the model but chose its epoch" in text
    assert "--folds 5 --output-dir" in text
    predictions = run_folder / "predictions.tsv"
    predictions.write_text(predictions.read_text().replace("\tvalidation\t", "\ttest\t"))
    assert "24 test samples that took no part in training" in report(run_folder)
    record = json.loads((run_folder / "run.json").read_text())
    parts = {"samples": {"train": 418, "validation": 116, "test": 141}}
    for members, note in (
        (["transformer"], "418 train, 116 validation, 141 test"),
        (["kernel", "forest"], "534 train, 141 test"),
        (["kernel", "transformer"], "418 train, 116 validation, 141 test (kernel: 534 train)"),
    ):
        changed = record | parts | {"members": members}
        (run_folder / "run.json").write_text(json.dumps(changed))
        samples = [
            tile for tile in tiles(ReportInput(read_run(run_folder))) if tile.label == "samples"
        ]
        assert samples == [Tile("675", "samples", note)]
    assert "test samples of 3 folds: each was predicted by a model that it did not train" in page(
        "classes"
    )


def scores_of(folder: Path) -> dict[str, Any]:
    """Return scores.json of an ensemble with the predictions of a run folder."""
    scored = read_run(folder).scored
    assert scored is not None
    own = compute_metrics(scored)
    samples, r2 = own.pop("samples"), own["r2"]
    assert r2 is not None

    def metrics(ahead: float) -> dict[str, Any]:
        value = r2 - ahead
        return {"r2": {"value": value, "lower": value - 0.1, "upper": value + 0.1}}

    ensemble = {name: {"value": value} for name, value in own.items()} | metrics(0)
    sentence = "ensemble is ahead of forest by 0.100 R²; within noise"
    return {
        "verdict": {"sentence": "The model is better."},
        "samples": samples,
        "models": {
            "ensemble": {"metrics": ensemble},
            "kernel": {"metrics": metrics(0)},
            "forest": {"metrics": metrics(0.1)},
            "dummy": {"metrics": metrics(r2 + 0.1)},
        },
        "differences": [{"model": "ensemble", "reference": "forest", "sentence": sentence}],
        "interval": {"coverage": 0.9, "half_width": 1.25, "covered": 0.875},
    }


def test_scores_of_members_have_intervals(run_folder: Path) -> None:
    scores = scores_of(run_folder)
    r2 = scores["models"]["ensemble"]["metrics"]["r2"]["value"]

    def shown(value: float) -> str:
        return f"{value:.2f} ({value - 0.1:.2f} to {value + 0.1:.2f})"

    (run_folder / "scores.json").write_text(json.dumps(scores))
    text = report(run_folder).replace("\N{NO-BREAK SPACE}", " ")
    assert "This model is ahead of forest by 0.100 R²; within noise." in text
    assert f'<th scope="row"><bdi>random forest</bdi></th><td><bdi>{shown(r2 - 0.1)}' in text
    assert f"R² is {shown(r2)}; a guess has -0.10." in text
    assert "aam baseline" not in text
    assert 'href="scores.json"' in text


@pytest.mark.parametrize(
    ("edit", "shown"),
    [
        (
            lambda scores: scores["models"]["ensemble"]["metrics"]["mae"].update(value=1000),
            "mae: 1000",
        ),
        (
            lambda scores: scores["models"]["ensemble"]["metrics"]["r2"].update(value=None),
            "r2: None",
        ),
        (lambda scores: scores.update(samples=9), "samples: 9 and 24"),
    ],
)
def test_scores_of_other_predictions_are_refused(
    run_folder: Path,
    capsys: pytest.CaptureFixture[str],
    edit: Callable[[dict[str, Any]], None],
    shown: str,
) -> None:
    scores = scores_of(run_folder)
    edit(scores)
    (run_folder / "scores.json").write_text(json.dumps(scores))
    assert main(["report", "--run-dir", str(run_folder)]) == DataError.status
    message = " ".join(capsys.readouterr().err.split())
    assert "scores.json and predictions.tsv contradict each other" in message
    assert shown in message
