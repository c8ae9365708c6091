"""Figures as files, with their numbers; the heat map of samples."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import aam as library
from aam.contract.errors import CannotCreate, UsageError
from aam.contract.options.commands.use import FigureFormat, FigureWidth
from aam.data.table import read_table
from aam.report.asvs import read_abundances, sample_heat_picture
from aam.report.figure_files import figure_numbers, write_figures
from aam.report.figures import Drawing, blank, shortened, styled
from aam.report.run import ReportInput, read_run
from tests.support.commands import aam
from tests.support.report_pages import downloads


@pytest.fixture(scope="module")
def run(study_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained kernel of three studies, with names of the ASVs."""
    run, study = tmp_path_factory.mktemp("figures") / "run", study_folder / "study"
    words = ("--members", "kernel", "--study-column", "site", "--output-dir", run)
    files = (study / "table.biom", study / "metadata.tsv", "ph")
    assert aam("train", *files, "--taxonomy", study / "taxonomy.tsv", *words) == 0
    return run


@pytest.fixture(scope="module")
def files(run: Path) -> dict[str, Path]:
    """The figures of the run as PDF, and their numbers."""
    folder = run.parent / "figures"
    assert aam("report", run, "--figures", folder, "--unit", "units") == 0
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.medium
def test_the_figures_of_the_page_are_files(run: Path, files: dict[str, Path]) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    names = {name.removesuffix(".svg") for name in downloads(page) if name.endswith(".svg")}
    assert {"agreement", "heatmap", "studies", "transfer", "ordination-target"} < names
    assert set(files) == {f"{name}.{form}" for name in names for form in ("pdf", "tsv")}
    for name in names:
        content = files[f"{name}.pdf"].read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content  # an embedded TrueType font
        assert b"/Type3" not in content
        table = pd.read_csv(files[f"{name}.tsv"], sep="\t")
        assert table.notna().any(axis=None)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("form", "width", "inches"),
    [("png", "one-column", 3.35), ("tiff", "two-column", 7.0), ("svg", "two-column", 7.0)],
)
def test_every_format_has_the_width_of_a_column(
    form: FigureFormat, width: FigureWidth, inches: float, run: Path, tmp_path: Path
) -> None:
    written = write_figures(ReportInput.of(read_run(run)), tmp_path, form, width)
    assert len(written) > 5
    for path in written:
        if form == "svg":
            text = path.read_text()
            points = re.search(r'width="([\d.]+)pt"', text)
            assert points is not None
            assert float(points[1]) == pytest.approx(72 * inches)
            assert "<text" not in text  # letters are outlines
        else:
            with Image.open(path) as picture:
                assert picture.width == pytest.approx(300 * inches, abs=1)
                assert [round(float(dpi)) for dpi in picture.info["dpi"]] == [300, 300]


@pytest.mark.medium
def test_the_numbers_are_those_of_the_run(run: Path, files: dict[str, Path]) -> None:
    written = pd.read_csv(run / "predictions.tsv", sep="\t").set_index("sample-id")
    drawn = pd.read_csv(files["agreement.tsv"], sep="\t").dropna(subset="name").set_index("name")
    drawn = drawn.loc[written.index]
    assert np.allclose(drawn["true ph (units)"], written["actual"])
    assert np.allclose(drawn["predicted ph (units)"], written["predicted"])
    scores = library.load(run).results().scores["studies"]
    forest = pd.read_csv(files["studies.tsv"], sep="\t", index_col=0)
    for study in scores["studies"]:
        score = study["metrics"]["r2"]
        shown = [None if np.isnan(value) else value for value in forest.loc[study["study"]]]
        assert shown == [score["value"], score["lower"], score["upper"]]
    assert forest.loc["mean", "R²"] == scores["summaries"]["r2"]["value"]
    importance = pd.read_csv(files["importance.tsv"], sep="\t")
    effects = pd.read_csv(run / "importance.tsv", sep="\t")["effect"][: len(importance)]
    assert np.allclose(importance.iloc[:, 0], effects)


@pytest.mark.medium
def test_python_writes_the_same_figures(run: Path, files: dict[str, Path], tmp_path: Path) -> None:
    model = library.load(run)
    model.report(tmp_path / "page.html", figures=tmp_path / "same", unit="units")
    same = {path.name: path.read_bytes() for path in (tmp_path / "same").iterdir()}
    assert same == {name: path.read_bytes() for name, path in files.items()}
    with pytest.raises(UsageError, match="format"):
        model.report(tmp_path / "page.html", figures=tmp_path / "same", format="gif")  # type: ignore[arg-type]
    assert model.plot("heatmap").get_title(loc="left") == "Associated genera"


@pytest.mark.medium
def test_the_heat_map_has_associated_genera(run: Path, files: dict[str, Path]) -> None:
    table = pd.read_csv(files["heatmap.tsv"], sep="\t").set_index("sample")
    written = pd.read_csv(run / "predictions.tsv", sep="\t").set_index("sample-id")
    assert set(table.index) == set(written.index)
    # The samples are in the order of their predictions.
    predicted = written.loc[table.index, "predicted"]
    assert predicted.is_monotonic_increasing
    assert np.allclose(table["ph (units)"], written.loc[table.index, "actual"], atol=1e-4)
    metadata = pd.read_csv(read_run(run).input_path("--metadata"), sep="\t", comment="#")
    metadata = metadata.set_index("sample-id")
    assert (table["site"] == metadata.loc[table.index, "site"]).all()
    associations = pd.read_csv(run / "associations.tsv", sep="\t").set_index("feature")
    genera = [name for name in table.columns if "g__" in name]
    assert len(genera) > 1
    assert (associations.loc[genera, "q"] < 0.1).all()
    # A genus is the sum of its ASVs.
    importance = pd.read_csv(run / "importance.tsv", sep="\t").set_index("feature-id")
    ids = importance.index[importance["taxon"].str.endswith(genera[0])]
    read = read_table(Path(read_run(run).input_path("--table")))
    counts = pd.DataFrame(read.counts.toarray(), read.sample_ids, read.feature_ids)
    shares = counts[ids].sum(axis=1) / counts.sum(axis=1)
    assert np.allclose(table[genera[0]], shares.loc[table.index])


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_the_heat_map_of_a_single_study_has_asvs(
    kind: str, study_folder: Path, tmp_path: Path
) -> None:
    run, table = read_run(study_folder / kind), read_table(study_folder / "study/table.biom")
    q_values = [0.01, 0.04, 0.02, *[0.5] * 20]
    rows = [{"feature-id": name, "effect": "1", "q_associated": str(q), "prevalence": "1"}
            for name, q in zip(table.feature_ids, q_values, strict=False)]  # fmt: skip
    run = replace(run, importance=tuple(rows))
    drawing = sample_heat_picture(ReportInput.of(run, abundances=read_abundances(run, table)))
    assert drawing is not None
    numbers = figure_numbers(drawing)
    assert set(numbers.columns) >= {*table.feature_ids[:3]}
    assert not set(numbers.columns) & {*table.feature_ids[3:]}
    order = [run.sample_ids.index(name) for name in numbers.index]
    assert run.scored is not None
    scale = run.scored.predicted
    assert all(scale[one] <= scale[other] for one, other in pairwise(order))
    texts = [f"{value:g}" for value in run.scored.actual]
    if run.scored.classes:
        texts = [run.scored.classes[code] for code in run.scored.actual]
    assert numbers[run.target].tolist() == [texts[row] for row in order]
    nothing = replace(run, importance=tuple({**row, "q_associated": "1"} for row in rows))
    given = ReportInput.of(nothing, abundances=read_abundances(nothing, table))
    assert sample_heat_picture(given) is None


def test_lines_and_bars_become_rows() -> None:
    @styled
    def drawn() -> Drawing:
        figure, axes = blank(3, 2)
        axes.plot([1, 2], [3, 4], label=shortened("_one", 9))
        axes.axhline(7)
        axes.barh([0, 1], [5, 6])
        axes.set_yticks([0, 1], ["low", "high"])
        return Drawing(figure, "", "")

    table = figure_numbers(drawn())
    assert table.values.tolist() == [
        ["_one", 1.0, 3.0], ["_one", 2.0, 4.0], ["", 5.0, "low"], ["", 6.0, "high"]
    ]  # fmt: skip


@pytest.mark.medium
def test_a_file_is_no_folder_of_figures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    status = aam("report", run, "--output", tmp_path / "r.html", "--figures", tmp_path / "file")
    assert status == CannotCreate.status
    assert "--figures cannot be made" in " ".join(capsys.readouterr().err.split())


@pytest.mark.medium
def test_methods_are_printed_once_and_figures_are_written_too(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ("--output", tmp_path / "r.html")
    assert aam("report", run, "--methods", *page, "--figures", tmp_path / "f") == 0
    printed = capsys.readouterr()
    assert "was predicted from" in printed.out and "was predicted from" not in printed.err
    assert list((tmp_path / "f").glob("*.pdf"))
