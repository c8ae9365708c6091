"""Run of a model in Python: its results, report and plots.

A model that was fitted without a run folder keeps what they need of its run in memory.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from aam.api.arguments import (
    MetadataTable,
    Table,
    arguments,
    as_biom,
    library_call,
    library_messages,
    path_argument,
    require_paths,
    require_type,
)
from aam.contract import run_files
from aam.contract.errors import DataError, MissingInput, UsageError, first_few, nearest
from aam.contract.files import dump_json, require
from aam.contract.options.commands.use import FigureFormat, FigureWidth, Report
from aam.contract.options.groups import DeviceOptions
from aam.contract.preflight import check_run_folder
from aam.contract.run_files import MODEL, PREDICTIONS, RECORD, REPEATS
from aam.data.metadata import ID_HEADER
from aam.members.model_file import PretrainedModel, TrainedModel, trained
from aam.pipeline.run_crate import write_crate
from aam.report.asvs import beeswarm, importance_drawing, read_abundances, waterfall
from aam.report.figures import drawing_on
from aam.report.page import write_report
from aam.report.run import ReportInput, Run, read_run
from aam.report.sections import OF_CLASSES, PICTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

IN_MEMORY = Path("in memory")
"""Path of a table, labels or a model in memory."""


class Results(NamedTuple):
    """Results of a cross-validation, or of one split.

    Attributes:
        scores: content of scores.json: `verdict` (comparison with the baseline, with `p`), for each
            model the value of each metric with its 95 % interval, and more. With several studies
            `studies` has the scores of each study, their means and the next study.
        oof_predictions: a row for each held-out sample and repeat by sample id: fold, actual and
            predicted value, interval or class probabilities, predictions of each member.
        splits: a row for each sample and fold: its set (train, validation, test) and group.
        importance: importance of each ASV by feature id, as `Model.importance` returns it, with the
            ranks in each fold; empty if it failed.
        associations: association of ASVs and taxa with the target within the studies of
            `study_column`, by feature; None for a single study.
    """

    scores: dict[str, Any]
    oof_predictions: pd.DataFrame
    splits: pd.DataFrame
    importance: pd.DataFrame
    associations: pd.DataFrame | None = None


@dataclass(frozen=True)
class RunResults:
    """Results, report and plots of the run of a `Model`, which has the other methods."""

    path: Path
    device: DeviceOptions
    loaded: TrainedModel | PretrainedModel
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    abundances: pd.DataFrame | None = field(default=None, repr=False)
    verbose: bool = True
    run: Run | None = field(default=None, repr=False)

    def results(self) -> Results:
        """Return scores, held-out predictions, splits and importance of the run."""
        with library_messages():
            run = self._run()
            texts = [ID_HEADER, "feature-id", "feature", "taxon", "class", "split", "group"]
            if run.scored is not None and run.scored.classes:
                texts += ["actual", "predicted", *(f"{name}_predicted" for name in run.members)]

            def table(name: str, index: str) -> pd.DataFrame:
                content = self.files.get(name) or require(run.folder / name, name).read_bytes()
                frame = pd.read_csv(
                    io.BytesIO(content), sep="\t", dtype=dict.fromkeys(texts, str),
                    keep_default_na=False, na_values=[""],
                )  # fmt: skip
                return frame.set_index(index)

            return Results(
                {} if run.scores is None else asdict(run.scores),
                table(REPEATS if REPEATS in run.files else PREDICTIONS, ID_HEADER),
                table("splits.tsv", ID_HEADER),
                table("importance.tsv", "feature-id") if run.importance else pd.DataFrame(),
                table("associations.tsv", "feature") if run.associations else None,
            )

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the run folder of the model, for `aam.load` and the commands.

        Args:
            path: folder; it is made if it does not exist.
            overwrite: replace an existing run in the folder, else refused, and no other files. The
                run folder of the model itself stays as it is.
        """
        folder = path_argument("path", path, "a pathlib.Path")
        with library_messages():
            model = trained(self.loaded, self.path)
            run_folder = None if self.files else self._run_folder()
            files = self.files if run_folder is None else run_files.small_files(run_folder)
            if overwrite and run_folder is not None and run_folder.resolve() == folder.resolve():
                return
            check_run_folder(folder, overwrite, resumable=False)
            paths = {"--model": self.path, "--output": folder, "--overwrite": overwrite}
            require_paths("evaluate", paths)
            run_files.remove(folder)
            model.save(folder / MODEL)
            record = json.loads(files[RECORD])
            record["files"] = [MODEL, *sorted(files.keys() - {RECORD})]
            for name, content in {**files, RECORD: dump_json(record, indent=2).encode()}.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(content)
            write_crate(folder)

    def report(
        self,
        output: str | PathLike[str] | None = None,
        *,
        metadata: MetadataTable = None,
        color_by: str | Sequence[str] = (),
        categories: str | Sequence[str] = (),
        unit: str = "",
        figures: str | PathLike[str] | None = None,
        format: FigureFormat = "pdf",
        width: FigureWidth = "one-column",
    ) -> Path:
        """Write the HTML report of the run, as `aam report` does, and return its path.

        Args:
            output: the page; None for report.html in the run folder, or in the working folder if
                the model was fitted without a run folder.
            metadata: file or DataFrame by sample id, for the colours; None: the run's.
            color_by: metadata columns that colour the samples; the target and others if empty.
            categories: metadata columns whose numbers are names of categories.
            unit: unit of a numeric target, such as months.
            figures: folder for the figures as files, each with its numbers as TSV; None for none.
            format: format of these files: pdf, png, svg or tiff, of 300 dpi.
            width: their width: one-column (85 mm) or two-column (178 mm).
        """
        parameters = {"color_by": color_by, "categories": categories, "unit": unit}
        values = arguments(Report, parameters)
        chosen = arguments(Report, {"format": format, "width": width})
        figure_folder = None if figures is None else path_argument("figures", figures, "None")
        page = None if output is None else path_argument("output", output, "None")
        with library_call(self._titled("report")) as files:
            run = self._run()
            page = page or (Path() if self.run else run.folder) / "report.html"
            columns = files.metadata(metadata)
            paths = {"--run-dir": run.folder, "--output": page, "--metadata": columns}
            require_paths("report", paths | {"--figures": figure_folder})
            report_input = ReportInput.of(run, columns, **values, abundances=self._abundances(run))
            write_report(report_input, page)
            if figure_folder is not None:
                from aam.report.figure_files import write_figures  # 0.5 s of matplotlib

                write_figures(report_input, figure_folder, chosen["format"], chosen["width"])
            return page

    def plot_predictions(self, *, unit: str = "", ax: Axes | None = None) -> Axes:
        """Plot held-out predictions against the truth, or the confusion matrix, see `plot`."""
        return self.plot("agreement", "confusion", unit=unit, ax=ax)

    def plot_importance(
        self, importance: pd.DataFrame | None = None, *, unit: str = "", ax: Axes | None = None
    ) -> Axes:
        """Plot the most important ASVs as bars, of the run or as `importance` returned them.

        `unit` and `ax`: see `plot`.
        """
        if importance is None:
            return self.plot("importance", unit=unit, ax=ax)
        arguments(Report, {"unit": unit})
        require_type("importance", importance, pd.DataFrame, "what `importance` returns")
        sizes = importance.filter(regex="^(permutation|effect|forest|transformer_effect)")
        _require_numbers(sizes, "importance")
        texts = importance.reset_index().map(lambda value: "" if pd.isna(value) else str(value))
        effect = f"effect ({unit})" if unit else "effect"
        with drawing_on(ax):
            drawing = importance_drawing(texts.to_dict("records"), effect)
        if drawing is None:
            evidence = f"columns {', '.join(map(str, importance.columns)) or 'none'}"
            raise DataError("No importance of ASVs", evidence, "give what `importance` returns")
        return _shown(drawing.figure, ax)

    def plot_learning_curve(self, *, ax: Axes | None = None) -> Axes:
        """Plot the score over the number of samples in training, or the loss, see `plot`."""
        return self.plot("samples", "curve-loss", ax=ax)

    def plot_waterfall(
        self, effects: pd.DataFrame, sample: str | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Plot how the effects of a sample lead from the mean to its prediction, as SHAP does.

        Args:
            effects: what `explain` returned.
            sample: its id; None for the first.
            ax: see `plot`.
        """
        effects = _checked_effects(effects)
        # Without its mean a sample has no starting point.
        samples = effects.loc[effects["kind"] == "mean", "sample"].dropna().unique().tolist()
        name = str(sample) if sample is not None or not samples else samples[0]
        if name not in samples:
            remedy = nearest(name, samples, "give a sample of these effects")
            raise DataError("No effects of this sample", repr(sample), remedy)
        with drawing_on(ax):
            return _shown(waterfall(effects, name).figure, ax)

    def plot_beeswarm(
        self, effects: pd.DataFrame, table: Table | None = None, *, ax: Axes | None = None
    ) -> Axes:
        """Plot the effects of the strongest features in all samples as points, as SHAP does.

        Args:
            effects: what `explain` returned.
            table: its table, whose abundances colour the points of ASVs; None for one colour.
            ax: see `plot`.
        """
        effects, shares = _checked_effects(effects), None
        if table is not None:
            with library_messages():
                read = as_biom(table).norm(axis="sample", inplace=False)
                shares = read.to_dataframe(dense=True).T
        with drawing_on(ax):
            return _shown(beeswarm(effects, shares).figure, ax)

    def plot(self, name: str, *alternatives: str, unit: str = "", ax: Axes | None = None) -> Axes:
        """Plot a picture of the report.

        Args:
            name: a name of `aam.report.sections.PICTURES`, such as errors, roc, calibration,
                abundance, ordination or embedding.
            alternatives: pictures to plot if the run lacks the data of the first.
            unit: unit of a numeric target, such as months.
            ax: axes to draw on; None: a new figure.

        Returns:
            The axes, `ax` or in a figure of pyplot that a notebook shows.
        """
        names = (name, *alternatives)
        for picture in names:
            require_type("picture", picture, str, f"one of {', '.join(PICTURES)}")
        if unknown := [picture for picture in names if picture not in PICTURES]:
            remedy = nearest(str(unknown[0]), list(PICTURES), f"give one of {', '.join(PICTURES)}")
            raise UsageError("Invalid picture", repr(unknown[0]), remedy)
        values = arguments(Report, {"unit": unit})
        with library_messages(), drawing_on(ax):
            run = self._run()
            abundances = self._abundances(run) if {"abundance", "heatmap"} & {*names} else None
            input = ReportInput(run, **values, abundances=abundances)
            drawings = (PICTURES[picture][1](input) for picture in names)
            drawing = next((drawing for drawing in drawings if drawing is not None), None)
        if drawing is None:
            evidence = f"'{run.folder}' lacks the data"
            remedy = "plot another picture, or write the data, such as by `aam importance`"
            if {*names} & OF_CLASSES and run.scores is not None and not run.scores.classes:
                evidence = f"'{run.target}' is a number; this picture is about classes"
                remedy = "plot agreement, errors or samples"
            raise DataError(f"Nothing to draw for '{name}'", evidence, remedy)
        return _shown(drawing.figure, ax)

    def _titled(self, method: str) -> str:
        """Return the name of a method in its line of progress; none without `verbose`."""
        return method if self.verbose else ""

    def _run(self) -> Run:
        return self.run or read_run(self._run_folder())

    def _abundances(self, run: Run) -> pd.DataFrame | None:
        return self.abundances if self.run else read_abundances(run)

    def _run_folder(self) -> Path:
        for folder in (self.path, self.path.parent):
            if (folder / RECORD).is_file() and (folder / MODEL).is_dir():
                return folder
        if self.path == IN_MEMORY:
            raise MissingInput(
                "The model was not evaluated", "evaluate is False", "fit with evaluate=True"
            )
        evidence = f"neither '{self.path}' nor its parent has a run.json"
        remedy = "load the --output-dir of the run"
        raise MissingInput("No run folder of the model", evidence, remedy)


def _checked_effects(effects: pd.DataFrame) -> pd.DataFrame:
    """Check a table of `explain`; a table that was read from a file may have numbers as names."""
    require_type("effects", effects, pd.DataFrame, "what `explain` returns")
    texts = ["sample", "feature", "kind", "unit"]
    if not {*texts, "effect"} <= {*effects} or effects.empty:
        evidence = f"columns {', '.join(map(str, effects.columns)) or 'none'}"
        raise DataError("No effects of samples", evidence, "give what `explain` returns")
    _require_numbers(effects[["effect"]], "effects")
    return effects.astype(dict.fromkeys(texts, str))


def _require_numbers(table: pd.DataFrame, argument: str) -> None:
    if not_numeric := [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]:
        remedy = f"give the {argument} as this package returns them"
        raise DataError(
            f"Columns of the {argument} are not numbers", first_few(not_numeric), remedy
        )


def _shown(drawn: Figure, ax: Axes | None = None) -> Axes:
    """Return the axes of the user, or of a figure that pyplot takes over for the notebook."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # 0.7 s that predictions do without

    # pyplot has no function that takes over a figure; it registers the one that FigureClass
    # returns.
    plt.figure(FigureClass=lambda **_: drawn)  # type: ignore[arg-type]
    return drawn.axes[0]
