"""Semantic types: the model of AAM; predictions, probabilities, importance of q2-sample-classifier.

Without q2-sample-classifier this plugin registers types of the same names and files.
"""

import json

from q2_types.feature_data import FeatureData
from q2_types.sample_data import SampleData

from .framework import plugin

AAMModel = plugin.SemanticType("AAMModel", field_names="task")
AAMEncoder = plugin.SemanticType("AAMEncoder", variant_of=AAMModel.field["task"])
AAMRegressor = plugin.SemanticType("AAMRegressor", variant_of=AAMModel.field["task"])
AAMClassifier = plugin.SemanticType("AAMClassifier", variant_of=AAMModel.field["task"])

FileCollection = plugin.model.FileCollection
TableFormat = plugin.TextFileFormat


class RunRecordFormat(plugin.TextFileFormat):
    """`run.json` of `aam pretrain` or `aam train`."""

    def _validate_(self, level):
        try:
            with self.open() as stream:
                command = json.load(stream)["command"]
        except (ValueError, KeyError, TypeError) as error:
            raise plugin.ValidationError(f"Not a run record of aam: {error!r}") from error
        if command not in ("pretrain", "train"):
            raise plugin.ValidationError(f"The run record is of `aam {command}`")


class AnyFileFormat(plugin.BinaryFileFormat):
    """A file of a run folder."""

    def _validate_(self, level):
        pass  # aam checks a file when it reads it


class AAMModelDirectoryFormat(plugin.DirectoryFormat):
    """Run folder: the run record, the model, splits, metrics, predictions."""

    record = plugin.model.File("run.json", format=RunRecordFormat)
    model = FileCollection(r"model/[\w-]+\.(json|safetensors)", format=AnyFileFormat)
    others = FileCollection(r"(?!run\.json$)(?!model/).+", format=AnyFileFormat, optional=True)

    @model.set_path_maker
    def model_path_maker(self, name):
        """Return the path of a file of the model, below the run folder."""
        return name

    @others.set_path_maker
    def others_path_maker(self, name):
        """Return the path of another file, below the run folder."""
        return name


try:
    from q2_sample_classifier import (
        ClassifierPredictions,
        Importance,
        ImportanceDirectoryFormat,
        PredictionsDirectoryFormat,
        Probabilities,
        ProbabilitiesDirectoryFormat,
        RegressorPredictions,
    )

    OWN_TYPES, OWN_FORMATS = (), ()
except ImportError:

    class PredictionsFormat(plugin.TextFileFormat):
        """Tab-separated: a header, then sample id and prediction."""

        columns = (2, 2)

        def _validate_(self, level):
            with self.open() as stream:
                widths = {line.count("\t") + 1 for line in stream if line.strip()}
            fewest, most = self.columns
            if not widths or len(widths) > 1 or not fewest <= min(widths) <= most:
                raise plugin.ValidationError(f"Expected a table of {self.columns} columns")

    class NumbersFormat(PredictionsFormat):
        """Tab-separated: a header, then an id and numbers."""

        columns = (2, 100_000)

    PredictionsDirectoryFormat = plugin.model.SingleFileDirectoryFormat(
        "PredictionsDirectoryFormat", "predictions.tsv", PredictionsFormat
    )
    ProbabilitiesDirectoryFormat = plugin.model.SingleFileDirectoryFormat(
        "ProbabilitiesDirectoryFormat", "class_probabilities.tsv", NumbersFormat
    )
    ImportanceDirectoryFormat = plugin.model.SingleFileDirectoryFormat(
        "ImportanceDirectoryFormat", "importance.tsv", NumbersFormat
    )
    _field = SampleData.field["type"]
    ClassifierPredictions = plugin.SemanticType("ClassifierPredictions", variant_of=_field)
    RegressorPredictions = plugin.SemanticType("RegressorPredictions", variant_of=_field)
    Probabilities = plugin.SemanticType("Probabilities", variant_of=_field)
    Importance = plugin.SemanticType("Importance", variant_of=FeatureData.field["type"])
    OWN_TYPES = (
        (SampleData[ClassifierPredictions], PredictionsDirectoryFormat),
        (SampleData[RegressorPredictions], PredictionsDirectoryFormat),
        (SampleData[Probabilities], ProbabilitiesDirectoryFormat),
        (FeatureData[Importance], ImportanceDirectoryFormat),
    )
    OWN_FORMATS = (
        *(PredictionsFormat, PredictionsDirectoryFormat, NumbersFormat),
        *(ProbabilitiesDirectoryFormat, ImportanceDirectoryFormat),
    )
