"""The report page: what it shows of each kind of run, that it stands alone, and how it looks."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from aam.cli import main
from aam.contract.errors import DataError, MissingInput, UsageError
from aam.data.distances import read_distances
from aam.data.metrics import ScoredPredictions, compute_metrics
from aam.data.ordination import coordinates_of_distances, principal_coordinates
from aam.report.base import Drawing, ReportInput
from aam.report.canvas import MOST_VECTORS, SERIES, blank, inline_svg
from aam.report.colours import as_colour
from aam.report.content import duration
from aam.report.pictures import PICTURES as REGISTRY
from aam.report.plots import MOST_CATEGORIES, ordination_figure
from aam.report.prediction_plots import calibration_bins
from aam.report.run import read_run
from aam.report.tables import bins_table
from tests.support.run_folders import make_run, make_study

PICTURES = {"pretrain": 6, "numbers": 11, "classes": 13}


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    study = make_study(folder / "study")
    for kind, folds in (("pretrain", 1), ("numbers", 1), ("classes", 3)):
        make_run(folder / kind, folder / "study", study, kind, folds)
    return folder


@pytest.fixture
def run_folder(study_folder: Path, tmp_path: Path) -> Path:
    """Return a numeric run that a test may change; its inputs stay where they are."""
    return Path(shutil.copytree(study_folder / "numbers", tmp_path / "numbers"))


def report(folder: Path, *more: str) -> str:
    assert main(["report", "--run-dir", str(folder), *more]) == 0
    return (folder / "report.html").read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Checks that tags are closed in order, and gathers ids, labels and addresses."""

    void = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [str(found["id"])] if "id" in found else []
        self.addresses += [str(found[k]) for k in ("src", "href", "xlink:href") if k in found]
        if tag == "svg":
            self.labels.append(str(found["aria-label"]))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", PICTURES)
def test_a_page_stands_alone_and_is_well_formed(study_folder: Path, kind: str) -> None:
    text = report(study_folder / kind)
    outline = Outline(text)
    assert len(outline.labels) == text.count("<svg") == PICTURES[kind]
    assert all(len(label) > 20 for label in outline.labels)
    assert len(outline.ids) == len(set(outline.ids))
    links = [one for one in outline.addresses if not one.startswith(("#", "data:"))]
    assert "run.json" in links
    assert all((study_folder / kind / link).is_file() for link in links)
    assert not re.search(r"<script|<link|@import|url\((?!#)", text)
    # The names of SVG's namespaces look like addresses and are none.
    assert set(re.findall(r"https?://[^\"' <]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not any(colour in text.split("</style>")[1].lower() for colour in SERIES)


def test_a_numeric_run_shows_its_figures(study_folder: Path) -> None:
    text = report(study_folder / "numbers")
    found = read_run(study_folder / "numbers")
    assert found.scored is not None
    error = np.abs(found.scored.actual - found.scored.predicted).mean()
    assert f'<dd class="value">{error:.3f}</dd>' in text
    assert "Prediction of ph" in text
    assert "24 validation samples" in text
    assert 'for="colour-0">ph</label>' in text
    assert "aam train --table &#39;a table.biom&#39;" in text
    assert "0123456789abcdef" * 4 in text
    assert f"aam baseline --table {study_folder / 'study' / 'table.biom'}" in text
    assert re.search(r'<tr class="own"><th scope="row"><code>--group-column', text)
    assert re.search(r"<tr><th scope=\"row\"><code>--warmup-fraction", text)


def test_folds_are_overlaid_and_tabled(study_folder: Path) -> None:
    text = report(study_folder / "classes")
    assert "Thin: 3 folds; thick: their mean." in text
    assert "test in fold 1" in text
    for name in ("fold 1", "fold 3", "mean ± sd", "all samples"):
        assert f'<th scope="row">{name}</th>' in text
    assert "Confusion matrix. " in text
    assert "ROC curves, mean AUC" in text
    assert "3-fold cross-validation" in text


def test_a_pretraining_has_no_predictions(study_folder: Path) -> None:
    text = report(study_folder / "pretrain")
    assert "Pretrained encoder" in text
    assert "<h2>Predictions</h2>" not in text
    assert "Loss of UniFrac over epochs" in text
    assert "Masked nucleotides named right over epochs" in text
    assert "Colours of the embedding by metadata columns:" in text
    metadata = str(study_folder / "study" / "metadata.tsv")
    coloured = report(study_folder / "pretrain", "--metadata", metadata, "--color-by", "site", "ph")
    assert 'for="colour-0">site</label>' in coloured
    assert 'for="colour-1">ph</label>' in coloured


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
    assert text.index("<h2>Training</h2>") < text.index("A made-up picture.")
    assert 'aria-label="A line from 3 to 4."' in text
    assert "A made-up picture." not in report(study_folder / "pretrain")


def test_a_baseline_beside_is_compared(study_folder: Path, run_folder: Path) -> None:
    words = ["--table", str(study_folder / "study" / "table.biom"), "--n-estimators", "20"]
    words += ["--metadata", str(study_folder / "study" / "metadata.tsv"), "--n-jobs", "1"]
    words += ["--metadata-column", "ph", "--output-dir", str(run_folder / "baseline")]
    assert main(["baseline", *words, "--splits", str(run_folder / "splits.tsv")]) == 0
    figures = json.loads((run_folder / "baseline" / "metrics.json").read_text())
    text = report(run_folder)
    r2 = figures["overall"]["r2"]
    assert re.search(rf'<th scope="row">random forest</th><td>{r2:.3f} \(-?\d', text)
    own = compute_metrics(read_run(run_folder).scored or pytest.fail("no predictions"))["r2"]
    assert own is not None
    side = "ahead of" if own > r2 else "behind"
    ahead = rf"This model is {side} the random forest by {abs(own - r2):.3f} R² \(95 % "
    assert re.search(ahead, text)
    assert "--member kernel" in text
    assert "--member forest" not in text
    assert main(["baseline", *words, "--seed", "9", "--overwrite"]) == 0
    assert "The random forest was scored on other samples and is not compared." in report(
        run_folder
    )
    assert main(["baseline", *words, "--overwrite", "--metadata-column", "depth"]) == 0
    text = report(run_folder)
    assert "The random forest predicts another column (depth)." in text
    assert ">random forest" not in text


def test_what_is_missing_is_left_out_with_a_sentence(run_folder: Path) -> None:
    for name in ("predictions.tsv", "embeddings.tsv", "metrics.csv"):
        (run_folder / name).unlink()
    record = json.loads((run_folder / "run.json").read_text())
    del record["finished"], record["seconds"]
    (run_folder / "run.json").write_text(json.dumps(record))
    text = report(run_folder)
    for sentence in (
        "no predictions with true values in this run folder yet",
        "no learning curves in this run folder yet",
        "no embedding in this run folder yet",
        "This run has not finished",
    ):
        assert sentence in text
    (run_folder / "run.json").write_text("{}")
    Outline(report(run_folder))


def test_lost_metadata_costs_only_the_colours(run_folder: Path) -> None:
    record = json.loads((run_folder / "run.json").read_text())
    record["inputs"]["--metadata"]["path"] = str(run_folder / "lost.tsv")
    (run_folder / "run.json").write_text(json.dumps(record))
    text = report(run_folder)
    assert "colour-0" not in text.partition("</style>")[2]
    assert "aam report --run-dir" in text
    words = ["report", "--run-dir", str(run_folder), "--color-by", "site"]
    assert main(words) == MissingInput.status


def test_names_cannot_break_the_page(run_folder: Path) -> None:
    record = json.loads((run_folder / "run.json").read_text())
    evil = "</svg><script>alert(1)</script>\"'&"
    record["options"]["target"]["metadata_column"] = evil
    record["inputs"] = {}
    (run_folder / "run.json").write_text(json.dumps(record))
    text = report(run_folder)
    assert "<script" not in text
    Outline(text)


def test_worst_samples_and_points_are_named(study_folder: Path) -> None:
    text = report(study_folder / "numbers", "--unit", "pH units")
    found = read_run(study_folder / "numbers")
    assert found.scored is not None
    wrong = np.abs(found.scored.predicted - found.scored.actual)
    worst = found.sample_ids[int(wrong.argmax())]
    table = text[text.index("The 10 worst samples") :]
    assert re.search(rf'<tbody>\s*<tr><th scope="row">{worst}</th>', table)
    for gid, names in (("agreement", found.sample_ids), ("embedding", found.embedded_ids)):
        figure = text[text.index(f'id="{gid}-points"') :].partition("</svg>")[0]
        titles = [title.partition("\n")[0] for title in re.findall("<title>([^<]*)", figure)]
        assert titles == list(names)
    assert "predicted ph (pH units)" in text
    assert f"{wrong.mean():.3f} <small>pH units</small>" in text


def test_scores_by_bin_and_by_group(study_folder: Path) -> None:
    text = report(study_folder / "numbers")
    found = read_run(study_folder / "numbers")
    assert found.scored is not None
    assert "<h3>By ph</h3>" in text
    table = bins_table(ReportInput(found))
    assert table is not None
    assert sum(int(row[1]) for row in table.rows) == len(found.scored.actual)
    assert all(f"site: site-{k}" in text for k in (1, 2, 3))


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


def test_the_headline_names_its_samples(study_folder: Path, run_folder: Path) -> None:
    text = report(run_folder)
    assert "24 validation samples, which did not train the model but chose its epoch" in text
    assert "--folds 5 --output-dir" in text
    predictions = run_folder / "predictions.tsv"
    predictions.write_text(predictions.read_text().replace("\tvalidation\t", "\ttest\t"))
    assert "24 test samples that took no part in training" in report(run_folder)
    assert "test samples of 3 folds: each was predicted by a model that it did not train" in report(
        study_folder / "classes"
    )


def test_scores_of_members_have_intervals(run_folder: Path) -> None:
    def metrics(r2: float) -> dict[str, object]:
        return {"metrics": {"r2": {"value": r2, "lower": r2 - 0.1, "upper": r2 + 0.1},
                            "mae": {"value": 0.3}}}  # fmt: skip

    sentence = "ensemble is ahead of forest by 0.100 R²; within noise"
    scores = {
        "samples": 24,
        "models": {"ensemble": metrics(0.6), "forest": metrics(0.5), "constant": metrics(-0.1)},
        "differences": [{"model": "ensemble", "reference": "forest", "sentence": sentence}],
        "interval": {"coverage": 0.9, "half_width": 1.25, "covered": 0.875},
    }
    (run_folder / "scores.json").write_text(json.dumps(scores))
    text = report(run_folder)
    assert "0.600 (0.500 to 0.700)" in text
    assert "This model is ahead of forest by 0.100 R²; within noise." in text
    assert '<th scope="row">random forest</th><td>0.500 (0.400 to 0.600)' in text
    assert "R² is 0.600 (0.500 to 0.700); a guess has -0.100." in text
    assert "aam baseline" not in text
    assert 'href="scores.json"' in text


def test_unifrac_is_shown_beside_the_embedding(study_folder: Path, run_folder: Path) -> None:
    study = study_folder / "study"
    text = report(run_folder)
    command = re.search(r"<code>(aam unifrac [^<]*)", text)
    assert command is not None
    assert main(shlex.split(command[1])[1:]) == 0
    text = report(run_folder)
    found = read_run(run_folder)
    assert found.embeddings is not None
    distances = read_distances(run_folder / "unifrac.tsv").aligned(found.embedded_ids).values
    above = np.triu_indices(len(distances), 1)
    expected = spearmanr(pdist(found.embeddings), distances[above])[0]
    assert f"of UniFrac correlate {expected:.2f} (Spearman)" in text
    assert "aam unifrac" not in text
    assert study.is_dir()


def test_calibration_counts_how_often_a_probability_is_right() -> None:
    chances = np.array([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 10)
    actual = np.array([0] * 9 + [1] + [1] * 5 + [0] * 5)
    scored = ScoredPredictions(actual, chances.argmax(axis=1), (), ("a", "b"), chances)
    means, shares, numbers = calibration_bins(scored)
    np.testing.assert_allclose(means, [0.6, 0.9])
    np.testing.assert_allclose(shares, [0.5, 0.9])
    assert numbers == [10, 10]


def test_runs_side_by_side(
    study_folder: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (run_folder / "predictions.tsv").read_text().splitlines()
    (run_folder / "predictions.tsv").write_text("\n".join(lines[:-4]) + "\n")
    both = [str(study_folder / "numbers"), str(run_folder)]
    report(study_folder / "numbers")
    assert main(["compare", *both, "--output", str(tmp_path / "compare.html")]) == 0
    printed = capsys.readouterr().out
    assert "On the 20 samples that all runs scored" in printed
    assert "--output-dir" not in printed
    text = (tmp_path / "compare.html").read_text()
    assert "On the 20 samples" in text
    links = {(tmp_path / link).resolve() for link in Outline(text).addresses}
    assert (study_folder / "numbers" / "report.html").resolve() in links
    assert main(["compare", both[0]]) == UsageError.status
    assert main(["compare", both[0], str(study_folder / "classes")]) == DataError.status
    assert main(["compare", both[0], str(study_folder / "pretrain")]) == DataError.status


def test_refusals(study_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    assert main(["report", "--run-dir", str(tmp_path / "no")]) == MissingInput.status
    assert main(["report", "--run-dir", str(tmp_path)]) == MissingInput.status
    folder = str(study_folder / "pretrain")
    assert main(["report", "--run-dir", folder, "--color-by", "ph"]) == UsageError.status
    words = ["report", "--run-dir", str(run_folder)]
    assert main([*words, "--color-by", "nowhere"]) == DataError.status
    (run_folder / "metrics.csv").write_text("epoch,lr\n0,fast\n")
    assert main(words) == DataError.status
    (run_folder / "run.json").write_text("not json")
    assert main(words) == DataError.status


def test_columns_become_numbers_or_categories() -> None:
    many = [str(number) for number in range(9)]
    assert as_colour("age", [*many, ""]).values is not None
    assert as_colour("age", many, category=True).labels == tuple(many)
    assert as_colour("plate", ["1", "2", "1", "2"] * 5).labels is not None
    assert as_colour("name", [*many, "x"]).labels is not None
    assert as_colour("odd", [*many, "inf"]).labels is not None


def test_numbers_that_are_names_are_categories(study_folder: Path) -> None:
    """A subject's number is a category: as the group column of the run, or by --categories."""
    text = report(study_folder / "numbers", "--color-by", "subject")
    legend = re.search(r'aria-label="Colours of subject">(.*?)</ul>', text, re.DOTALL)
    assert legend is not None
    assert "others" in legend[1]
    words = ("--color-by", "depth", "--metadata", str(study_folder / "study" / "metadata.tsv"))
    for more, kind in (((), 'class="scale"'), (("--categories", "depth"), "others")):
        text = report(study_folder / "pretrain", *words, *more)
        legend = re.search(r'aria-label="Colours of depth">(.*?)</ul>', text, re.DOTALL)
        assert legend is not None
        assert kind in legend[1]


def test_many_categories_are_gathered() -> None:
    rng = np.random.default_rng(0)
    labels = [f"c{k:02d}" for k in range(20) for _ in range(k + 1)] + [""] * 5
    figure = ordination_figure(rng.normal(size=(len(labels), 2)), [0.5, 0.2], labels=labels)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:1] == ["c11 (12)"]
    assert names[-2:] == ["no value (5)", "11 others"]
    assert len(names) == MOST_CATEGORIES + 2


def test_many_points_become_pixels() -> None:
    rng = np.random.default_rng(0)
    number = 10 * MOST_VECTORS
    figure = ordination_figure(rng.normal(size=(number, 2)), [0.5, 0.2], values=rng.random(number))
    drawn = inline_svg(figure, "x", "many points")
    assert "data:image/png" in drawn
    assert len(drawn) < 1_000_000


def test_a_figure_can_be_saved_as_it_is(tmp_path: Path) -> None:
    from matplotlib import image

    coords = np.random.default_rng(0).normal(size=(30, 2))
    figure = ordination_figure(coords, [0.5, 0.2], "title", labels=["a", "b"] * 15, named="x")
    figure.savefig(tmp_path / "pcoa.png")
    assert image.imread(tmp_path / "pcoa.png").std() > 0.05


def test_principal_coordinates_are_those_of_scikit_bio() -> None:
    from scipy.spatial.distance import pdist, squareform
    from skbio.stats.ordination import pcoa

    vectors = np.random.default_rng(0).normal(size=(20, 6)) * np.arange(1, 7)
    ours, explained = principal_coordinates(vectors)
    theirs = pcoa(squareform(pdist(vectors)), dimensions=6)
    np.testing.assert_allclose(abs(ours), abs(theirs.samples.to_numpy()[:, :2]), atol=1e-9)
    np.testing.assert_allclose(explained, theirs.proportion_explained.to_numpy()[:2])
    alike, nothing = principal_coordinates(np.ones((3, 4)))
    assert not alike.any()
    assert not nothing.any()


def test_coordinates_of_distances_are_those_of_the_vectors() -> None:
    from scipy.spatial.distance import squareform

    vectors = np.random.default_rng(0).normal(size=(20, 6)) * np.arange(1, 7)
    by_vectors, explained = principal_coordinates(vectors)
    by_distances, shares = coordinates_of_distances(squareform(pdist(vectors)))
    np.testing.assert_allclose(by_distances, by_vectors, atol=1e-9)
    np.testing.assert_allclose(shares, explained, atol=1e-9)


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59, 90, 5400, 200_000)] == [
        "0 s",
        "59 s",
        "1.5 min",
        "1.5 h",
        "2.31 d",
    ]


def chromium(page: Path, picture: Path, size: tuple[int, int], dark: bool) -> str:
    """Photograph a page; returns what the browser logged of its console."""
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
    ]
    flags += ["--blink-settings=preferredColorScheme=0"] if dark else []
    flags += [f"--user-data-dir={picture.parent / 'profile'}", f"--screenshot={picture}"]
    flags += [f"--window-size={size[0]},{size[1]}", page.as_uri()]
    done = subprocess.run([program, *flags], capture_output=True, text=True, timeout=120)
    assert picture.is_file(), done.stderr
    return "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", PICTURES)
def test_every_picture_is_drawn_by_a_browser(
    study_folder: Path, tmp_path: Path, kind: str, dark: bool
) -> None:
    from matplotlib import image

    text = report(study_folder / kind)
    page = study_folder / kind / "report.html"
    assert chromium(page, tmp_path / "page.png", (1280, 2400), dark) == ""
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


def test_a_narrow_window_does_not_overflow(study_folder: Path, tmp_path: Path) -> None:
    """A page in a frame of a telephone's width is as wide as the frame."""
    if shutil.which("chromium") is None and not os.environ.get("CI"):
        pytest.skip("chromium is not installed")
    text = report(study_folder / "classes")
    probe = "<script>document.title = document.documentElement.scrollWidth</script>"
    text = re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", probe + "</body>")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    # Chromium's windows are at least 500 pixels wide.
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--disable-background-networking"]
    command += ["--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    width = re.search(r"<title>(\d+)</title>", done.stdout)
    assert width is not None
    assert int(width[1]) <= 500


def test_a_read_only_home_is_no_reason_to_warn() -> None:
    """A container often has no folder where matplotlib could keep its fonts."""
    code = "from aam.report.canvas import blank; blank(1, 1)"
    variables = {"HOME": "/proc/none", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True,
                          text=True, check=True, cwd=Path(__file__).parents[2])  # fmt: skip
    assert done.stderr == ""
