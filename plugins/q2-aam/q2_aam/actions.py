"""Actions: each passes the files of its artifacts to a command of aam and wraps what it writes."""

import html
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import skbio
from q2_types.feature_data import DNAFASTAFormat
from q2_types.feature_table import BIOMV210Format
from q2_types.tree import NewickFormat
from scipy.spatial.distance import pdist, squareform

from .framework import framework
from .options import takes_options
from .program import aam
from .types import (
    AAMModelDirectoryFormat,
    ImportanceDirectoryFormat,
    PredictionsDirectoryFormat,
    ProbabilitiesDirectoryFormat,
)

GROUPS = "aam-groups"
_NOT_KEPT = shutil.ignore_patterns("checkpoints", "tensorboard", "progress.json", ".*")


@takes_options("pretrain")
def pretrain(
    table: BIOMV210Format,
    tree: NewickFormat,
    sequences: DNAFASTAFormat = None,
    encoder: AAMModelDirectoryFormat = None,
    **options,
) -> AAMModelDirectoryFormat:
    """Pretrain an encoder without labels."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        aam(
            "pretrain", options, table=table, tree=tree, sequences=sequences,
            pretrained_encoder=encoder, output_dir=run,
        )  # fmt: skip
        return _model(run)


@takes_options("train")
def train(
    table: BIOMV210Format,
    metadata: framework.MetadataColumn,
    sequences: DNAFASTAFormat = None,
    tree: NewickFormat = None,
    encoder: AAMModelDirectoryFormat = None,
    groups: framework.CategoricalMetadataColumn = None,
    **options,
) -> AAMModelDirectoryFormat:
    """Train a predictor of a metadata column."""
    if not options.get("classifier") and not options.get("ordinal"):
        _require_numbers(metadata)
    with tempfile.TemporaryDirectory() as folder:
        run, file = Path(folder) / "run", Path(folder) / "metadata.tsv"
        columns = {metadata.name: metadata.to_series()}
        if groups is not None:
            columns[GROUPS] = groups.to_series()
        framework.Metadata(pd.DataFrame(columns).rename_axis("sample-id")).save(str(file))
        aam(
            "train", options, table=table, tree=tree, sequences=sequences, metadata=file,
            metadata_column=metadata.name, pretrained_encoder=encoder, output_dir=run,
            group_column=None if groups is None else GROUPS,
        )  # fmt: skip
        return _model(run)


def _require_numbers(column: framework.MetadataColumn) -> None:
    """Refuse words, which aam predicts as classes: the option decides the type of the artifact."""
    values = column.to_series().dropna()
    words = int(pd.to_numeric(values, errors="coerce").isna().sum())
    if 2 * words > len(values):
        raise ValueError(
            f"The column '{column.name}' is not numeric: {words} of {len(values)} values are no "
            "numbers; add --p-classifier True if they are classes."
        )


@takes_options("predict")
def predict(
    table: BIOMV210Format,
    model: AAMModelDirectoryFormat,
    sequences: DNAFASTAFormat = None,
    **options,
) -> PredictionsDirectoryFormat:
    """Predict the column of a model for the samples of a table."""
    found = _predictions(table, model, sequences, options)
    result = PredictionsDirectoryFormat()
    found[["predicted"]].to_csv(Path(str(result)) / "predictions.tsv", sep="\t")
    return result


@takes_options("predict")
def predict_probabilities(
    table: BIOMV210Format,
    model: AAMModelDirectoryFormat,
    sequences: DNAFASTAFormat = None,
    **options,
) -> ProbabilitiesDirectoryFormat:
    """Predict the probability of each class for the samples of a table."""
    found = _predictions(table, model, sequences, options).filter(regex="^p_")
    result = ProbabilitiesDirectoryFormat()
    named = found.rename(columns=lambda name: name[len("p_") :])
    named.to_csv(Path(str(result)) / "class_probabilities.tsv", sep="\t")
    return result


@takes_options("importance")
def importance(
    table: BIOMV210Format,
    model: AAMModelDirectoryFormat,
    sequences: DNAFASTAFormat = None,
    **options,
) -> ImportanceDirectoryFormat:
    """Rank the features of a table by how much the predictions of a model depend on them."""
    result = ImportanceDirectoryFormat()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "importance.tsv"  # aam writes a run record beside it
        aam("importance", options, table=table, model=model, sequences=sequences, output=output)
        table = pd.read_csv(output, sep="\t", dtype=str, keep_default_na=False)
    # The type takes numbers only: nan where an ASV was not permuted.
    table.replace("", "nan").to_csv(Path(str(result)) / "importance.tsv", sep="\t", index=False)
    return result


@takes_options("embed")
def embed(
    table: BIOMV210Format,
    model: AAMModelDirectoryFormat,
    sequences: DNAFASTAFormat = None,
    **options,
) -> (skbio.DistanceMatrix, skbio.OrdinationResults):
    """Compute the distances between the embeddings of samples, and their PCoA."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "embedding"
        aam("embed", options, table=table, model=model, sequences=sequences, output_dir=folder)
        vectors = _read(folder / "embeddings.tsv").astype(np.float64)
        distances = squareform(pdist(vectors.to_numpy()))
        ordination = skbio.OrdinationResults.read(str(folder / "ordination.txt"))
    return skbio.DistanceMatrix(distances, list(vectors.index)), ordination


@takes_options("unifrac")
def unifrac(table: BIOMV210Format, tree: NewickFormat, **options) -> skbio.DistanceMatrix:
    """Compute the UniFrac distances of a table."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "distances.tsv"
        aam("unifrac", options, table=table, tree=tree, output=output)
        return skbio.DistanceMatrix.read(str(output))


def evaluate(
    output_dir: str,
    predictions: PredictionsDirectoryFormat,
    metadata: framework.MetadataColumn,
) -> None:
    """Show the metrics of predictions against a metadata column."""
    folder = Path(output_dir)
    column = metadata.name
    table = pd.read_csv(Path(str(predictions)) / "predictions.tsv", sep="\t", dtype=str,
                        keep_default_na=False)  # fmt: skip
    table.columns = ["sample-id", "predicted"]
    table.to_csv(folder / "predictions.tsv", sep="\t", index=False)
    metadata.save(str(folder / "metadata.tsv"))
    aam(
        "evaluate", predictions=folder / "predictions.tsv", metadata=folder / "metadata.tsv",
        metadata_column=column, output=folder / "metrics.json",
        classifier=isinstance(metadata, framework.CategoricalMetadataColumn) or None,
    )  # fmt: skip
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(f'{value:.4g}')}</td></tr>"
        for name, value in json.loads((folder / "metrics.json").read_text())["overall"].items()
    )
    (folder / "index.html").write_text(
        f"<!doctype html><meta charset=utf-8><title>aam evaluate</title>"
        f"<style>body{{font:16px sans-serif;margin:2em}}td,th{{padding:.2em 1em;text-align:left}}"
        f"</style><h1>Predictions of {html.escape(column)}</h1><table>{rows}</table>"
        f"<p><a href=metrics.json>metrics.json</a> <a href=predictions.tsv>predictions.tsv</a>"
    )


def report(
    output_dir: str, model: AAMModelDirectoryFormat, metadata: framework.Metadata = None
) -> None:
    """Show the report of a model: learning curves, predictions, embedding, provenance."""
    with tempfile.TemporaryDirectory() as folder:
        run, file = Path(folder) / "run", None
        shutil.copytree(str(model), run)  # artifacts are read-only
        if metadata is not None:
            file = Path(folder) / "metadata.tsv"
            metadata.save(str(file))
        output = Path(output_dir) / "index.html"
        aam("report", run_dir=run, metadata=file, output=output)


def _model(run):
    """Wrap a run folder, without what only a resumed run needs."""
    result = AAMModelDirectoryFormat()
    shutil.copytree(run, str(result), ignore=_NOT_KEPT, dirs_exist_ok=True)
    return result


def _predictions(table, model, sequences, options):
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "predictions.tsv"
        aam("predict", options, table=table, model=model, sequences=sequences, output=output)
        return _read(output)


def _read(path):
    """Read a table of samples as text: the classes 01 and 1 differ, and 1e5 is no number."""
    return pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False).set_index("sample-id")
