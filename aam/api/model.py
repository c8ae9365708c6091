"""Trained models in Python: load, predict, explain, evaluate and compare them."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd

from aam import wings
from aam.api.arguments import (
    MetadataTable,
    Sequences,
    Table,
    Taxonomy,
    arguments,
    as_parameters,
    has_sample_ids,
    library_messages,
    path_argument,
    require_paths,
    short_repr,
    table_files,
)
from aam.api.run_results import IN_MEMORY, RunResults
from aam.console import Message, print_messages
from aam.contract.errors import DataError, UsageError
from aam.contract.options import build, flag_of, values_of
from aam.contract.options.commands.use import Evaluate, ImportanceOptions, Predict
from aam.contract.options.groups import Device, DeviceOptions
from aam.contract.run_files import small_files
from aam.data.metadata import ID_HEADER
from aam.data.study import load_study
from aam.data.table import FeatureTable
from aam.members.explanations import FIRST
from aam.members.importance import importance_table
from aam.members.model_file import TrainedModel, read, trained
from aam.members.output_tables import InferenceSettings
from aam.members.prediction_tables import predict_table, unwritten
from aam.pipeline.validate import validate
from aam.report.asvs import read_abundances
from aam.report.comparison import compare_runs
from aam.report.run import read_run

_UNNAMED = "unnamed-"
"""Prefix of the ids of samples without ids, which must differ from ids of training samples."""


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
class Model(RunResults):
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
        with table_files(title, table, sequences, drop_empty_samples, unnamed) as (input, files):
            file = files.metadata(metadata)
            predict = unwritten(input, self.device, self.path, file, **checked)
            loaded, taxa = trained(self.loaded, self.path), files.taxa(taxonomy)
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
        with table_files(title, table, sequences, drop_empty_samples) as (input, files):
            path = path_argument("metadata", files.metadata(metadata), "a DataFrame")
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
        with table_files(title, table, sequences, drop_empty_samples) as (input, files):
            loaded = trained(self.loaded, self.path)
            path = files.metadata(metadata)
            study = loaded.read_study(input, path)
            covariates = loaded.read_covariates(path, study.table.sample_ids)
            importance = importance_table(loaded, study, files.taxa(taxonomy), covariates)
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


def fitted(path: Path, device: DeviceOptions, table: FeatureTable | None, verbose: bool) -> Model:
    """Return the model of a run; `table` has the training samples if the folder is temporary."""
    loaded = read(path, device)
    if table is None:
        return Model(path, device, loaded, verbose=verbose)
    run = dataclasses.replace(read_run(path), folder=IN_MEMORY)
    abundances, files = read_abundances(run, table), small_files(path)
    return Model(IN_MEMORY, device, loaded, files, abundances, verbose, run)


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
