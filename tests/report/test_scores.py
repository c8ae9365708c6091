"""Scores in a report: baselines, intervals, worst samples, scores by bin, group and category."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aam.cli import main
from aam.contract.errors import DataError
from aam.report.page import Tile, tiles
from aam.report.run import ReportInput, read_run
from tests.report.test_page_parts import write_importance
from tests.support.report_pages import report


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


@pytest.mark.medium
def test_a_run_without_embedding_has_scores_by_category(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "embeddings.tsv").unlink()
    assert "This run folder has no embedding yet" in report(run_folder)
    record = json.loads((run_folder / "run.json").read_text())
    (run_folder / "run.json").write_text(json.dumps(record | {"members": ["kernel", "forest"]}))
    text = report(run_folder)
    assert "no embedding" not in text
    assert all(f"site: site-{k}" in text for k in (1, 2, 3))
    assert "colour-0" not in text.partition("</style>")[2]
    assert main(["report", "--run-dir", str(run_folder), "--color-by", "sit"]) == DataError.status
    assert "did you mean 'site'?" in capsys.readouterr().err


@pytest.mark.medium
def test_the_headline_names_its_samples(run_folder: Path) -> None:
    text = report(run_folder)
    assert "24 validation samples that also chose the best epoch" in text
    predictions = run_folder / "predictions.tsv"
    predictions.write_text(predictions.read_text().replace("\tvalidation\t", "\ttest\t"))
    assert "24 held-out samples: no model was trained on them" in report(run_folder)
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


def scores_of(folder: Path) -> dict[str, Any]:
    """Return scores.json of an ensemble with the predictions of a run folder."""
    scored = read_run(folder).scored
    assert scored is not None
    own = scored.metrics()
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
        "weights": {
            "model": {"kernel": 0.75, "forest": 0.25},
            "folds": [{"kernel": 0.5, "forest": 0.5}, {"kernel": 1.0, "forest": 0.0}],
        },
        "models": {
            "ensemble": {"metrics": ensemble},
            "kernel": {"metrics": metrics(0)},
            "forest": {"metrics": metrics(0.1)},
            "guess": {"metrics": metrics(r2 + 0.1)},
        },
        "differences": [
            {"model": "ensemble", "reference": "forest", "sentence": sentence, "value": 0.1}
        ],
        "interval": {"coverage": 0.9, "half_width": 1.25, "covered": 0.875},
    }


def test_scores_of_members_have_intervals(run_folder: Path) -> None:
    scores = scores_of(run_folder)
    r2 = scores["models"]["ensemble"]["metrics"]["r2"]["value"]

    def shown(value: float) -> str:
        return f"{value:.2f} ({value - 0.1:.2f} to {value + 0.1:.2f})"

    (run_folder / "scores.json").write_text(json.dumps(scores))
    text = report(run_folder).replace("\N{NO-BREAK SPACE}", " ")
    assert '<p class="verdict">The model is better.</p>' in text
    assert text.index("The model is better.") < text.index('<dl class="tiles">')
    assert (
        "The ensemble is 75% kernel + 25% forest; "
        "the models of the folds: kernel 50% to 100%" in text
    )
    assert "Ensemble ahead by" in text and "<bdi>0.100</bdi>" in text
    assert f'<th scope="row"><bdi>forest</bdi></th><td><bdi>{shown(r2 - 0.1)}' in text
    assert "this model" not in text.lower()
    assert 'href="scores.json"' in text


def test_importance_of_a_model_no_better_than_the_dummy_is_marked(
    study_folder: Path, run_folder: Path
) -> None:
    write_importance(run_folder, study_folder)
    scores = scores_of(run_folder)
    (run_folder / "scores.json").write_text(json.dumps(scores))
    assert "not shown to be better" not in report(run_folder)
    scores["verdict"] = {"outcome": "not better", "sentence": "It is not shown."}
    scores["repeated_samples"] = {
        "sentence": "With the groups it has 0.1",
        "column": "subject",
        "groups": 9,
        "metric": "r2",
        "given": 0.5,
        "grouped": 0.1,
    }
    (run_folder / "scores.json").write_text(json.dumps(scores))
    text = report(run_folder)
    assert '<p class="verdict unproven">It is not shown.</p>' in text
    section = text[text.index('id="part-asvs"') :]
    assert section.index("not shown to be better than the baseline") < section.index("<figure>")
    assert "With the groups it has 0.1." in text


@pytest.mark.parametrize(
    ("metric", "value", "shown"), [("mae", 1000, "mae: 1000"), ("r2", None, "r2: None")]
)
def test_scores_of_other_predictions_are_refused(
    run_folder: Path, capsys: pytest.CaptureFixture[str], metric: str, value: Any, shown: str
) -> None:
    scores = scores_of(run_folder)
    scores["models"]["ensemble"]["metrics"][metric]["value"] = value
    (run_folder / "scores.json").write_text(json.dumps(scores))
    assert main(["report", "--run-dir", str(run_folder)]) == DataError.status
    message = " ".join(capsys.readouterr().err.split())
    assert "scores.json and predictions.tsv disagree" in message
    assert shown in message
