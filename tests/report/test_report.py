"""The page of a report: self-contained, well-formed, complete, drawn by a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from aam.cli import main
from aam.contract.errors import CannotCreate, DataError, MissingInput, UsageError
from aam.report.figures import SERIES, Drawing, blank
from aam.report.predictions import bins_table
from aam.report.run import ReportInput, read_run
from aam.report.sections import PICTURES as REGISTRY
from tests.support.report_pages import (
    Outline,
    assert_own_script_alone,
    chromium,
    downloads,
    hidden_width,
    report,
    scroll_width,
)

PICTURES = {"pretrain": 6, "numbers": 11, "classes": 13}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_page_stands_alone_and_all_of_it_can_be_downloaded(
    study_folder: Path, page: Callable[[str], str], kind: str
) -> None:
    text = page(kind)
    outline, files = Outline(text), downloads(text)
    assert len(outline.labels) == text.count("<svg") == PICTURES[kind]
    assert all(len(label) > 20 for label in outline.labels)
    assert len(outline.ids) == len(set(outline.ids))
    folded = re.findall(r'<section id="part-\w+">\n<details', text)
    assert len(folded) == text.count("<h2>") > 2
    links = [one for one in outline.addresses if not one.startswith(("#", "data:"))]
    assert "run.json" in links
    assert all((study_folder / kind / link).is_file() for link in links)
    assert not re.search(r"<link|@import|url\((?!#)", text)
    assert_own_script_alone(text)
    # The names of SVG's namespaces look like addresses and are none.
    without_references = re.sub(r"<code>@software.*?</code>", "", text, flags=re.DOTALL)
    assert set(re.findall(r"https?://[^\"' <]+", without_references)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not any(colour in text.split("</style>")[1].lower() for colour in SERIES)
    drawn = [content for name, content in files.items() if name.endswith(".svg")]
    assert len(drawn) == PICTURES[kind]
    for content in drawn:
        assert ElementTree.fromstring(content).tag.endswith("svg")
        assert "var(--" not in content  # programs that edit pictures know no variables
        assert "prefers-color-scheme: dark" in content
    assert sum(name.endswith(".tsv") for name in files) == text.count('class="numbers"')


def test_a_numeric_run_shows_its_figures(study_folder: Path, page: Callable[[str], str]) -> None:
    text = page("numbers")
    found = read_run(study_folder / "numbers")
    assert found.scored is not None
    error = np.abs(found.scored.actual - found.scored.predicted).mean()
    tile = re.search(
        r'<dt>MAE</dt><dd class="value">([\d.]+)</dd><dd class="note">([\d.]+) to', text
    )
    assert tile is not None
    assert float(tile[1]) == pytest.approx(error, abs=0.005)
    assert len(tile[1]) == len(tile[2]) == 4  # half of the interval is between 0.095 and 0.95
    assert "Prediction of ph" in text
    assert "24 validation samples" in text
    assert 'for="colour-0"><bdi>ph</bdi></label>' in text
    assert "aam train --table &#39;a table.biom&#39;" in text
    assert "0123456789abcdef" * 4 in text
    first, _, others = text.partition("Options that are not the default")[2].partition("<details>")
    assert "<bdi>--group-column</bdi>" in first and "--group-column" not in others
    assert "<bdi>--warmup-fraction</bdi>" in others
    assert "<summary><bdi>By ph</bdi>" in text
    table = bins_table(ReportInput(found))
    assert table is not None
    assert sum(int(row[1]) for row in table.rows) == len(found.scored.actual)
    assert all(f"site: site-{k}" in text for k in (1, 2, 3))


def test_classes_have_folds_and_methods(page: Callable[[str], str]) -> None:
    text = page("classes")
    rows = [line.split("\t") for line in downloads(text)["by-class.tsv"].splitlines()]
    assert rows[0] == ["", "Samples", "Precision", "Recall", "F1"]
    assert [row[0] for row in rows[1:]] == ["site-1", "site-2", "site-3"]
    for name in ("fold 1", "fold 3", "mean", "sd", "all samples"):
        assert f'<th scope="row"><bdi>{name}</bdi></th>' in text
    for sentence in (
        "Thin: 3 folds; thick: their mean.",
        "held-out samples: each was predicted by models of the other folds (3 folds)",
        "ROC curves, mean AUC",
        "AUC: fraction of pairs of samples of the same fold",
        "with aam 0.1.0.",
        "3-fold cross-validation",
        "Software: python 3.11.7, torch 2.13.0.",
    ):
        assert sentence in text
    keys = re.findall(r"@\w+\{(\w+),", text)
    assert keys[0] == "aam"
    assert {"vaswani2017", "efron1981", "parker2007", "mcdonald2012"} < set(keys)
    references = text[text.index("@software") : text.index("</code>", text.index("@software"))]
    assert references.count("{") == references.count("}")


def test_a_pretraining_has_no_predictions(study_folder: Path, page: Callable[[str], str]) -> None:
    text = page("pretrain")
    assert "Pretrained encoder" in text
    assert "with aam" not in text
    assert "<h2>Predictions</h2>" not in text
    assert "Loss of UniFrac over epochs" in text
    assert "Masked nucleotides predicted over epochs" in text
    assert "Embedding coloured by metadata columns:" in text
    metadata = str(study_folder / "study" / "metadata.tsv")
    coloured = report(study_folder / "pretrain", "--metadata", metadata, "--color-by", "site", "ph")
    assert 'for="colour-0"><bdi>site</bdi></label>' in coloured
    assert 'for="colour-1"><bdi>ph</bdi></label>' in coloured


@pytest.mark.medium
def test_a_picture_is_added_by_one_function_and_one_line(
    study_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def depth_picture(given: ReportInput) -> Drawing | None:
        if given.run.target is None:
            return None
        figure, axes = blank(3, 2)
        axes.plot([1, 2], [3, 4])
        return Drawing(figure, "A made-up picture.", "A line from 3 to 4.")

    monkeypatch.setitem(REGISTRY, "depth", ("learning", depth_picture))
    text = report(study_folder / "numbers")
    assert text.index("<h2>Training and options</h2>") < text.index("A made-up picture.")
    assert 'aria-label="A line from 3 to 4."' in text
    assert "A made-up picture." not in report(study_folder / "pretrain")


def test_what_is_missing_is_left_out_with_a_sentence(run_folder: Path) -> None:
    for name in ("predictions.tsv", "embeddings.tsv", "metrics.csv"):
        (run_folder / name).unlink()
    record = json.loads((run_folder / "run.json").read_text())
    del record["finished"], record["seconds"]
    (run_folder / "run.json").write_text(json.dumps(record))
    text = report(run_folder)
    for sentence in (
        "This run folder has no predictions with true values yet",
        "This run folder has no learning curves yet",
        "This run folder has no embedding yet",
        "This run has not finished",
    ):
        assert sentence in text
    (run_folder / "run.json").write_text("{}")
    with pytest.raises(DataError, match="The run record is damaged: .*, the content has no 'aam'"):
        read_run(run_folder)


@pytest.mark.medium
def test_names_cannot_break_the_page(run_folder: Path) -> None:
    record = json.loads((run_folder / "run.json").read_text())
    evil = "</svg><script>alert(1)</script>\"'&"
    record["options"]["target"]["metadata_column"] = evil
    record["inputs"] = {}
    (run_folder / "run.json").write_text(json.dumps(record))
    text = report(run_folder)
    assert_own_script_alone(text)
    Outline(text)


@pytest.mark.medium
def test_runs_side_by_side(
    study_folder: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (run_folder / "predictions.tsv").read_text().splitlines()
    (run_folder / "predictions.tsv").write_text("\n".join(lines[:-4]) + "\n")
    both = [str(study_folder / "numbers"), str(run_folder)]
    report(study_folder / "numbers")
    assert main(["compare", *both, "--output", str(tmp_path / "compare.html")]) == 0
    printed = capsys.readouterr().out
    assert "On the 20 samples of all runs" in printed
    assert "--output-dir" not in printed
    text = (tmp_path / "compare.html").read_text()
    assert "On the 20 samples" in text
    names = {"intervals.svg", "overlay.svg", "differing-options-and-facts.tsv"}
    assert set(downloads(text)) >= names
    assert printed.index("Differing options and facts") < printed.index("R²")
    links = {(tmp_path / link).resolve() for link in Outline(text).addresses}
    assert (study_folder / "numbers" / "report.html").resolve() in links
    capsys.readouterr()
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert main(["compare", *both, "--output", str(notes)]) == CannotCreate.status
    assert main(["report", "--run-dir", both[1], "--output", str(notes)]) == CannotCreate.status
    assert notes.read_text() == "mine"
    assert capsys.readouterr().err.count("is no HTML page") == 2
    header, line, *others = (run_folder / "predictions.tsv").read_text().splitlines()
    cells, place = line.split("\t"), header.split("\t").index("actual")
    cells[place] = f"{float(cells[place]) + 1}"
    (run_folder / "predictions.tsv").write_text("\n".join([header, "\t".join(cells), *others]))
    capsys.readouterr()
    assert main(["compare", *both]) == DataError.status
    assert "differ in the true values of ph: 1 of 20 samples of" in capsys.readouterr().err
    assert main(["compare", both[0]]) == UsageError.status
    assert main(["compare", both[0], str(study_folder / "classes")]) == DataError.status
    assert main(["compare", both[0], str(study_folder / "pretrain")]) == DataError.status


@pytest.fixture
def read_only(run_folder: Path) -> Iterator[Path]:
    """A run folder that nobody can write to: for root, who may write anywhere, a mount."""
    if os.geteuid() != 0:
        run_folder.chmod(0o555)
        yield run_folder
        run_folder.chmod(0o755)
        return
    if subprocess.run(["mount", "--bind", run_folder, run_folder], check=False).returncode:
        pytest.skip("no mount in this container")
    subprocess.run(["mount", "-o", "remount,ro,bind", run_folder], check=True)
    yield run_folder
    subprocess.run(["umount", run_folder], check=True)


def test_the_page_of_a_read_only_run_goes_elsewhere(
    read_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--run-dir", str(read_only)]) == CannotCreate.status
    assert "--output" in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert main(["report", "--run-dir", str(read_only), "--output", str(page)]) == 0
    assert page.is_file()


def test_refusals(study_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    assert main(["report", "--run-dir", str(tmp_path / "no")]) == MissingInput.status
    assert main(["report", "--run-dir", str(tmp_path)]) == MissingInput.status
    folder = str(study_folder / "pretrain")
    assert main(["report", "--run-dir", folder, "--color-by", "ph"]) == UsageError.status
    args = ["report", "--run-dir", str(run_folder)]
    assert main([*args, "--color-by", "nowhere"]) == DataError.status
    record = json.loads((run_folder / "run.json").read_text())
    record["inputs"]["--metadata"]["path"] = str(run_folder / "lost.tsv")
    (run_folder / "run.json").write_text(json.dumps(record))
    assert "colour-0" not in report(run_folder).partition("</style>")[2]
    assert main([*args, "--color-by", "site"]) == MissingInput.status
    (run_folder / "metrics.csv").write_text("epoch,lr\n0,fast\n")
    assert main(args) == DataError.status
    (run_folder / "run.json").write_text("not json")
    assert main(args) == DataError.status


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "dark"),
    [("pretrain", False), ("numbers", True), ("classes", False)],
)
def test_every_picture_is_drawn_by_a_browser(
    page: Callable[[str], str], tmp_path: Path, kind: str, dark: bool
) -> None:
    from matplotlib import image

    text = page(kind)
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    assert chromium(file, tmp_path / "page.png", (1280, 2400), dark) == ""
    whole = image.imread(tmp_path / "page.png")[..., :3]
    assert (whole[5, 5].mean() < 0.2) == dark
    assert np.abs(whole - whole[5, 5]).max() > 0.5

    # Each picture alone, in a band of its own, with the page's style.
    drawn = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    height = 300
    bands = "".join(f'<div style="height:{height}px;overflow:hidden">{svg}</div>' for svg in drawn)
    head = text[: text.index("<body>")].replace("</style>", "svg{max-height:280px}</style>")
    alone = tmp_path / "alone.html"
    alone.write_text(f'{head}<body style="padding:0"><div>{bands}</div>', encoding="utf-8")
    chromium(alone, tmp_path / "alone.png", (800, height * len(drawn)), dark)
    pixels = image.imread(tmp_path / "alone.png")[..., :3]
    for number in range(len(drawn)):
        band = pixels[number * height : (number + 1) * height]
        inked = np.abs(band - whole[5, 5]).max(axis=-1) > 0.25
        assert inked.sum() > 1500, f"picture {number} of {kind} is blank"
        # Strong colours, not only axes and letters.
        assert (band.max(axis=-1) - band.min(axis=-1) > 0.35).sum() > 150, f"picture {number}"


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_page_fits_a_narrow_window_and_its_tables_a_screen(
    kind: str, page: Callable[[str], str], tmp_path: Path
) -> None:
    assert scroll_width(page(kind), tmp_path) <= 500
    assert hidden_width(page(kind), tmp_path) <= 0
