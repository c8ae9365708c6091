"""Trained models in Python: load a run folder, predict, explain, plot, report and compare."""

from __future__ import annotations

import dataclasses
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from aam import wings
from aam.api.arguments import (
    MetadataTable,
    Sequences,
    Table,
    Taxonomy,
    arguments,
    as_biom,
    as_parameters,
    has_sample_ids,
    library_call,
    library_messages,
    metadata_file,
    path_argument,
    require_paths,
    require_type,
    short_repr,
    table_files,
    taxonomy_file,
)
from aam.console import Message, later_step, print_messages
from aam.contract import run_files
from aam.contract.errors import DataError, MissingInput, UsageError, first_few, nearest
from aam.contract.files import dump_json, require
from aam.contract.options import build, flag_of, values_of
from aam.contract.options.commands.use import (
    Evaluate,
    FigureFormat,
    FigureWidth,
    ImportanceOptions,
    Predict,
    Report,
)
from aam.contract.options.groups import Device, DeviceOptions
from aam.contract.preflight import check_run_folder
from aam.contract.run_files import COUNTS_ALONE, FILES, MODEL, PREDICTIONS, RECORD, REPEATS
from aam.data.metadata import ID_HEADER
from aam.data.study import load_study
from aam.data.table import FeatureTable
from aam.data.taxonomy import read_taxonomy
from aam.members.explanations import FIRST
from aam.members.importance import importance_table
from aam.members.model_file import PretrainedModel, TrainedModel, read, trained
from aam.members.output_tables import InferenceSettings
from aam.members.prediction_tables import predict_table, unwritten
from aam.pipeline.run_crate import write_crate
from aam.pipeline.validate import validate
from aam.report.asvs import beeswarm, importance_drawing, read_abundances, waterfall
from aam.report.comparison import compare_runs
from aam.report.figures import Drawing, drawing_on
from aam.report.page import write_report
from aam.report.run import ReportInput, Run, read_run
from aam.report.sections import OF_CLASSES, PICTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IN_MEMORY = Path("in memory")
"""Path of a table, labels or a model in memory."""

_UNNAMED = "unnamed-"
"""Prefix of the ids of samples without ids, which must differ from ids of training samples."""


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


class Evaluation(NamedTuple):
    """Scores of a model in another study.

    Attributes:
        scores: content of scores.json: `verdict` (comparison with the training baseline, with `p`),
            `models`, and `external`: calibration, scores of subsets of the samples, and notes.
        predictions: a row for each scored sample by sample id: actual and predicted value, interval
            or class probabilities, predictions of each member, comparison with the training.
    """

    scores: dict[str, Any]
    predictions: pd.DataFrame

    def __repr__(self) -> str:
        sentence = self.scores["verdict"]["sentence"]
        return f"aam.Evaluation of {len(self.predictions)} samples\n  {sentence}"


@dataclass(frozen=True)
class Model:
    """Model of `aam pretrain` or `aam train`.

    Methods raise UsageError for an argument of the wrong type or range, DataError for a table or
    metadata that the model cannot read and for a damaged run folder, CannotCreate for an output
    that exists or cannot be written, and MissingInput for results, plots and the report of a model
    without a run: loaded without its run folder, or fitted with `evaluate=False`.

    Attributes:
        path: path from which it was read; it is not read again.
        device: device of the computation.
        loaded: members and their combination, or a pretrained encoder.
        files: small files of the run by name, if the model was fitted without a run folder.
        abundances: relative abundances of the leading ASVs in the training samples of such a run.
        run: content of such a run.
        verbose: show the progress of long work.
    """

    path: Path
    device: DeviceOptions
    loaded: TrainedModel | PretrainedModel
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    abundances: pd.DataFrame | None = field(default=None, repr=False)
    verbose: bool = True
    run: Run | None = field(default=None, repr=False)

    @property
    def column(self) -> str | None:
        """The metadata column that the model predicts; None if it was pretrained only."""
        return self.loaded.column

    def __repr__(self) -> str:
        predicts = "pretrained encoder" if self.column is None else f"predicts '{self.column}'"
        members = f"members {', '.join(self.loaded.models)}"
        text = f"aam.Model('{self.path}', device='{self.device.device}')\n  {predicts}, {members}"
        return text if self._performance is None else f"{text}\n  {self._performance}"

    @property
    def _performance(self) -> str | None:
        """Sentence about the held-out performance; None for a pretrained encoder."""
        return self.loaded.performance.sentence if isinstance(self.loaded, TrainedModel) else None

    def _repr_html_(self) -> str:
        """Return the model as a table for a notebook."""
        rows = {
            "predicts": "nothing: a pretrained encoder" if self.column is None else self.column,
            "members": ", ".join(self.loaded.models),
            "device": self.device.device,
            "path": str(self.path),
        }
        if self._performance is not None:
            rows["performance"] = self._performance
        # A notebook inserts the text as HTML, and column and path are names that others chose.
        cells = (
            f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in rows.items()
        )
        return f"<table><caption>aam.Model</caption>{''.join(cells)}</table>"

    def predict(
        self,
        table: Table,
        sequences: Sequences = None,
        *,
        metadata: MetadataTable = None,
        batch_size: int = 32,
        prediction_passes: int = 1,
        drop_empty_samples: bool = False,
        force: bool = False,
    ) -> pd.DataFrame:
        """Predict the target for every sample of a table.

        Args:
            table: see `aam.api.arguments.Table`; its ASVs may differ from the training ASVs. The
                samples of an array, and of a DataFrame with row numbers, count as new.
            sequences: see `aam.api.arguments.Sequences`.
            metadata: for a model that reads metadata columns; it applies the --where of the
                training.
            batch_size: samples at a time; the predictions depend on it by rounding alone.
            prediction_passes: rarefactions to average over.
            drop_empty_samples: leave out samples without reads instead of raising.
            force: predict also where no ASV of the table occurs in the training data.

        Returns:
            A row for each sample: `predicted` in the units of the metadata, or the class;
            `p_CLASS` or `q_QUANTILE`, and the further columns of `aam predict`.
        """
        unnamed, (predictions, notes, _) = self._predict(
            "predict", table, sequences, metadata, drop_empty_samples,
            batch_size=batch_size, prediction_passes=prediction_passes, force=force,
        )  # fmt: skip
        with library_messages(unnamed=unnamed):
            print_messages(notes)
        predictions[ID_HEADER] = predictions[ID_HEADER].str.removeprefix(unnamed)
        return predictions.set_index(ID_HEADER)

    def explain(
        self,
        table: Table,
        sequences: Sequences = None,
        *,
        metadata: MetadataTable = None,
        taxonomy: Taxonomy = None,
        first: int = FIRST,
        drop_empty_samples: bool = False,
        force: bool = False,
    ) -> pd.DataFrame:
        """Explain predictions: effects that move each from the mean label of the training samples.

        Raises DataError if no member can divide its predictions among ASVs.

        Args:
            table, sequences, metadata, drop_empty_samples, force: see `predict`.
            taxonomy: see `aam.api.arguments.Taxonomy`; ASVs of the same taxon are summed.
            first: features of a sample with a row of their own, 1 or more.

        Returns:
            The columns sample, feature, kind, effect and unit of `aam predict --explain`. The
            effects of a sample add up to its prediction, or to the probability of its class.
        """
        first = arguments(ImportanceOptions, {"first": first})["first"]
        unnamed, (*_, effects) = self._predict(
            "explain", table, sequences, metadata, drop_empty_samples, taxonomy, first,
            explain=Path("unwritten.tsv"), force=force,
        )  # fmt: skip
        assert effects is not None  # --explain
        return effects.assign(sample=effects["sample"].str.removeprefix(unnamed))

    def _predict(
        self,
        title: str,
        table: Table,
        sequences: Sequences,
        metadata: MetadataTable,
        drop_empty_samples: bool,
        taxonomy: Taxonomy = None,
        first: int = FIRST,
        **options: Any,
    ) -> tuple[str, tuple[pd.DataFrame, list[Message], pd.DataFrame | None]]:
        """Run `predict_table`; also return the prefix of the ids of samples without ids."""
        # Without metadata, samples without ids must not count as training samples 0, 1 and so on;
        # with metadata, these numbers are the ids of its rows.
        unnamed = "" if metadata is not None or has_sample_ids(table) else _UNNAMED
        checked = arguments(Predict, options)
        title = self._titled(title)
        with table_files(title, table, sequences, drop_empty_samples, unnamed) as (input, folder):
            file = metadata_file(metadata, folder)
            predict = unwritten(input, self.device, self.path, file, **checked)
            loaded, taxa = trained(self.loaded, self.path), _taxa(taxonomy, folder)
            return unnamed, predict_table(loaded, predict, taxa=taxa, first=first)

    def evaluate(
        self,
        table: Table,
        metadata: str | PathLike[str] | pd.DataFrame,
        column: str | None = None,
        sequences: Sequences = None,
        *,
        by: str | Sequence[str] = (),
        group_column: str | None = None,
        study_column: str | None = None,
        where: str | None = None,
        drop_empty_samples: bool = False,
        output: str | PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Evaluation:
        """Score the model on the samples of another study, as `aam evaluate --model` does.

        Args:
            table, sequences, drop_empty_samples: see `predict`.
            metadata: file or DataFrame by sample id, with the true values.
            column: column of the true values; None for the name that the model predicts.
            by: columns for whose values scores are computed, too.
            group_column: column of groups, such as subjects, whose samples are not independent.
            study_column: column of several studies; each is scored alone.
            where: condition on the metadata that the samples meet.
            output: folder for scores, predictions and report; None for none.
            overwrite: replace an earlier evaluation in the folder.
        """
        parameters = {
            "metadata_column": self.column if column is None else column,
            "by": by, "group_column": group_column, "study_column": study_column,
            "where": where, "overwrite": overwrite,
        }  # fmt: skip
        checked = arguments(Evaluate, parameters, {"metadata_column": "column"})
        values = {flag_of(name): value for name, value in checked.items()}
        folder_of_output = None if output is None else path_argument("output", output, "None")
        title = self._titled("evaluate")
        with table_files(title, table, sequences, drop_empty_samples) as (input, folder):
            path = path_argument("metadata", metadata_file(metadata, folder), "a DataFrame")
            paths = {"--model": self.path, "--metadata": path, "--output": folder_of_output}
            options = build(Evaluate, values_of(self.device) | values_of(input) | paths | values)
            require_paths("evaluate", values_of(options))
            scores, predictions = validate(options, trained(self.loaded, self.path))
        return Evaluation(asdict(scores), predictions.set_index(ID_HEADER))

    def importance(
        self,
        table: Table,
        sequences: Sequences = None,
        *,
        metadata: MetadataTable = None,
        taxonomy: Taxonomy = None,
        drop_empty_samples: bool = False,
    ) -> pd.DataFrame:
        """Return how much the predictions depend on each ASV, by feature id, highest first.

        Args:
            table: samples over which the importance is averaged.
            sequences, metadata, drop_empty_samples: see `predict`.
            taxonomy: see `aam.api.arguments.Taxonomy`.

        Returns:
            The columns of `aam importance`.
        """
        title = self._titled("importance")
        with table_files(title, table, sequences, drop_empty_samples) as (input, folder):
            loaded = trained(self.loaded, self.path)
            path = metadata_file(metadata, folder)
            study = loaded.read_study(input, path)
            covariates = loaded.read_covariates(path, study.table.sample_ids)
            importance = importance_table(loaded, study, _taxa(taxonomy, folder), covariates)
            return importance.set_index("feature-id")

    def embed(
        self,
        table: Table,
        sequences: Sequences = None,
        *,
        batch_size: int = 32,
        drop_empty_samples: bool = False,
    ) -> pd.DataFrame:
        """Return the embedding of every sample, float32 [N, D]: rows by sample id, e0, e1, ...

        With several folds it is the embedding of the first: different networks have no
        common axes. A model without network is a DataError. Arguments: see `predict`.
        """
        settings = InferenceSettings(**arguments(Predict, {"batch_size": batch_size}))
        title = self._titled("embed")
        with table_files(title, table, sequences, drop_empty_samples) as (input, _):
            study = load_study(input, max_bp=self.loaded.max_bp)
            embedded = (model.embed(study, settings) for model in self.loaded.models.values())
            embeddings = next((vectors for vectors in embedded if vectors is not None), None)
        if embeddings is None:
            remedy = "train with the member transformer, or load an encoder of `aam pretrain`"
            raise DataError("The model has no embedding", f"'{self.path}' has no network", remedy)
        index = pd.Index(study.table.sample_ids, name=ID_HEADER)
        names = [f"e{axis}" for axis in range(embeddings.shape[1])]
        return pd.DataFrame(embeddings, index=index, columns=names)

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
            files = self.files if run_folder is None else _small_files(run_folder)
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
            with later_step("research object"):
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
        with library_call(self._titled("report")) as folder:
            run = self._run()
            page = page or (Path() if self.run else run.folder) / "report.html"
            columns = metadata_file(metadata, folder)
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
        return _shown(drawing, ax)

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
            return _shown(waterfall(effects, name), ax)

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
            return _shown(beeswarm(effects, shares), ax)

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
        return _shown(drawing, ax)

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


def _taxa(taxonomy: Taxonomy, folder: Path) -> Mapping[str, str] | None:
    path = taxonomy_file(taxonomy, folder)
    return None if path is None else read_taxonomy(path)


def fitted(path: Path, device: DeviceOptions, table: FeatureTable | None, verbose: bool) -> Model:
    """Return the model of a run; `table` has the training samples if the folder is temporary."""
    loaded = read(path, device)
    if table is None:
        return Model(path, device, loaded, verbose=verbose)
    run = dataclasses.replace(read_run(path), folder=IN_MEMORY)
    abundances = read_abundances(run, table)
    return Model(IN_MEMORY, device, loaded, _small_files(path), abundances, verbose, run)


def _small_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a run that a report needs, by name."""
    paths = map(PurePosixPath, run_files.files_of(folder))
    names = [str(path) for path in paths if path.name in FILES and COUNTS_ALONE not in path.parts]
    return {name: (folder / name).read_bytes() for name in (RECORD, *names)}


def _shown(drawing: Drawing, ax: Axes | None = None) -> Axes:
    """Return the axes of the user, or of a figure that pyplot takes over for the notebook."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # 0.7 s that predictions do without

    # pyplot has no function that takes over a figure; it registers the one that FigureClass
    # returns.
    plt.figure(FigureClass=lambda **_: drawing.figure)  # type: ignore[arg-type]
    return drawing.figure.axes[0]


def load(
    run: str | PathLike[str], device: Device | Literal["gpu"] = "auto", *, verbose: bool = True
) -> Model:
    """Load the model of a run folder.

    >>> import aam
    >>> aam.load("runs/age").predict("table.biom")  # doctest: +SKIP

    Args:
        run: run folder of `aam train` or `aam pretrain`, its folder `model`, or a copy of that.
        device: `gpu` or `cuda` is any GPU, else Unavailable; `auto` takes one if there is one.
        verbose: show the progress of what the model does, if it takes more than two seconds.

    Returns:
        The model, whose file is not read again. Results, plots and the report read the run folder
        when they are called; a copy of the folder `model` alone predicts.
    """
    options = DeviceOptions(**arguments(DeviceOptions, {"device": device}))
    path = path_argument("run", run, "a pathlib.Path")
    with library_messages():
        if options.device not in ("auto", "cpu"):
            wings.network().require_device(options)  # also of members that need none
        return Model(path, options, read(path, options), verbose=verbose)


def compare(
    *models: Any, output: str | PathLike[str] | None = None, **models_by_name: Any
) -> dict[str, pd.DataFrame]:
    """Compare models that predict the same target, as `aam compare` does.

    >>> import aam
    >>> aam.compare(kernel=first, forest=second)  # doctest: +SKIP

    Args:
        models: two or more fitted estimators, models, or run folders; each is compared with the
            first.
        output: HTML page to write; None for none.
        models_by_name: models with a name for the tables.

    Returns:
        The tables of `aam compare` by title: what differs, metrics with intervals on the common
        samples, and paired differences from the first model.
    """
    by_name = {f"model {number}": model for number, model in enumerate(models, 1)} | models_by_name
    if len(by_name) < 2:
        raise UsageError("One model cannot be compared", short_repr(models), "give two or more")
    page = None if output is None else path_argument("output", output, "None")
    runs = []
    with library_messages("compare"):
        for name, model in by_name.items():
            model = getattr(model, "model_", model)
            if not isinstance(model, (Model, str, PathLike)):
                remedy = "give fitted estimators, models or run folders"
                raise UsageError("Not a model", short_repr(model), remedy)
            model = model if isinstance(model, Model) else load(model)
            run = model._run()
            if name in models_by_name or run.folder == IN_MEMORY:
                run = dataclasses.replace(run, folder=Path(name))
            runs.append(run)
        require_paths("compare", {"--output": page})
        compared = compare_runs(runs, page)
    tables = {}
    for table in compared:
        names, *columns = zip(*table.rows, strict=True)
        values = pd.DataFrame(dict(enumerate(columns)), index=map(as_parameters, names))
        tables[table.title] = values.set_axis(table.heads[1:], axis=1)
    return tables
