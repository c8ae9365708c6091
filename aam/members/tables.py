"""Tables of predictions: of held-out samples, and of new samples by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from aam.console import warn
from aam.contract.options.commands.use import Predict
from aam.contract.options.members import networks
from aam.data.metadata import ID_HEADER
from aam.data.study import load_study
from aam.data.targets import OutputRange, label_names
from aam.inference.new_samples import (
    Comparison,
    compare,
    find_known_asvs,
    read_covariates,
    select_as_trained,
)
from aam.inference.tables import ALONE, InferenceSettings, RankShare, require_finite
from aam.members.base import F64, Samples
from aam.members.explanations import FIRST, explain
from aam.members.member import reader
from aam.members.model_file import TrainedModel
from aam.members.scores import Folds
from aam.members.uncertainty import median_codes

_KEYS = (ID_HEADER, "fold", "split")


def held_out_table(
    sample_ids: Sequence[str],
    folds: Folds,
    predictions_MC: F64,
    columns: Mapping[str, object] | None = None,
) -> pd.DataFrame:
    """Build the table sample-id, fold, split, actual, predicted, rank, p_<class>, and more.

    Args:
        sample_ids: names of all N samples.
        folds: labels, and the held-out samples of the table.
        predictions_MC: numbers or class probabilities.
        columns: further columns of M values.
    """
    scored = folds.scored(predictions_MC)
    content: dict[str, object] = {
        ID_HEADER: [sample_ids[row] for row in folds.rows_M],
        "fold": folds.fold_M,
        "split": folds.part,
        "actual": label_names(scored.actual, scored.classes),
        "predicted": label_names(scored.predicted, scored.classes),
    }
    if folds.labels.levels:
        content["rank"] = predictions_MC[:, 0]
    if scored.probabilities is not None:
        content |= _probability_columns(scored.probabilities, scored.classes)
    return pd.DataFrame(content | dict(columns or {}))


def prediction_columns(
    predictions_NC: F64, classes: Sequence[str], prefix: str = ""
) -> dict[str, object]:
    """Return the columns predicted and p_<class>, with a prefix before their names."""
    if not classes:
        return {f"{prefix}predicted": predictions_NC[:, 0]}
    predicted = {f"{prefix}predicted": label_names(np.argmax(predictions_NC, axis=1), classes)}
    return predicted | _probability_columns(predictions_NC, classes, prefix)


def member_columns(
    name: str, predictions_NC: F64, classes: Sequence[str], levels: Sequence[str]
) -> dict[str, object]:
    """Return the columns of a member: its predictions, of ordered categories the rank alone."""
    if levels:
        return {f"{name}_rank": predictions_NC[:, 0]}
    return prediction_columns(predictions_NC, classes, f"{name}_")


def _probability_columns(
    probabilities_NC: F64, classes: Sequence[str], prefix: str = ""
) -> dict[str, object]:
    return {f"{prefix}p_{name}": probabilities_NC[:, c] for c, name in enumerate(classes)}


def interval_columns(
    predictions_NC: F64, half_widths_N: F64 | None, outputs: OutputRange
) -> dict[str, object]:
    """Return the limits of the prediction intervals; nothing if there are none."""
    if half_widths_N is None or not np.isfinite(half_widths_N).all():
        return {}
    return {
        "lower": outputs.clip(predictions_NC[:, 0] - half_widths_N),
        "upper": outputs.clip(predictions_NC[:, 0] + half_widths_N),
    }


def join_targets(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Join tables of samples: columns of a target get its name as prefix, `COLUMN_predicted`."""
    parts = []
    for column, table in tables.items():
        keys = [name for name in _KEYS if name in table]
        if "fold" not in keys:
            keys = [ID_HEADER]  # `split` of new samples is a comparison with the training data
        parts.append(table.set_index(keys).add_prefix(f"{column}_"))
    return pd.concat(parts, axis=1).reset_index()


def predict_table(
    loaded: TrainedModel,
    options: Predict,
    share: RankShare = ALONE,
    taxa: Mapping[str, str] | None = None,
    first: int = FIRST,
) -> tuple[pd.DataFrame, Comparison, pd.DataFrame | None]:
    """Predict every sample of a table with a model and each of its members.

    Args:
        loaded: the model, with its members on a device.
        options: table, metadata, batch size and number of passes of `aam predict`.
        share: samples that this process predicts; all ranks return the whole table.
        taxa, first: see `explain`.

    Returns:
        A row for each sample with sample-id, the prediction of the ensemble, its interval or class
        probabilities, and the predictions of each member; the comparison of the samples with the
        training data, whose columns are in the same table; and with --explain the explanations.

    Raises:
        AamError: see `load_study`.
        NotFinite: a prediction is NaN or infinite.
    """
    facts = loaded.facts
    study = load_study(options.input, max_bp=loaded.max_bp)
    study = select_as_trained(study, facts.options, options.metadata)
    known = find_known_asvs(loaded.training.summary, study, required=not options.force)
    part = share.take(study, options.batch_size)
    ids = part.table.sample_ids
    covariates = read_covariates(loaded.encoder, options.metadata, ids)
    samples = Samples.of(part, covariates)
    settings = InferenceSettings(options.batch_size, options.prediction_passes, options.vectors)
    if options.prediction_passes > 1 and not networks(tuple(loaded.models)):
        warn("Without the member transformer this option has no effect: --prediction-passes.")
    applied = {
        name: model.apply(
            reader(name).read(samples, loaded.relations), facts.outputs.scale, settings
        )
        for name, model in loaded.models.items()
    }
    members = {name: found.values_NC for name, found in applied.items()}
    predictions_NC = facts.ensemble.combine(members, bool(facts.classes))
    require_finite("predictions", ids, predictions_NC)
    columns: dict[str, object] = {ID_HEADER: list(ids)}
    if facts.odds is not None:
        ranks_N = predictions_NC[:, 0]
        chances_NC = facts.odds.probabilities(ranks_N)
        columns["predicted"] = label_names(median_codes(chances_NC), facts.levels)
        columns |= {"rank": ranks_N, **_probability_columns(chances_NC, facts.levels)}
    else:
        columns |= prediction_columns(predictions_NC, facts.classes)
    if not facts.classes:
        widths_N = np.full(len(ids), facts.ensemble.half_width)
        columns |= interval_columns(predictions_NC, widths_N, facts.range)
    for name, member_NC in members.items():
        columns |= member_columns(name, member_NC, facts.classes, facts.levels)
    for found in applied.values():
        columns |= found.columns
    distances_N = loaded.training.distances(samples, loaded.relations)
    explanations = None
    if options.explain is not None:
        means_NC = np.tile(facts.means, (len(ids), 1))
        explanations = explain(
            loaded.models, facts.ensemble, facts.outputs, loaded.relations, samples,
            predictions_NC, members, means_NC, part.table.feature_ids, taxa, first,
        )  # fmt: skip
    gathered = share.gather((pd.DataFrame(columns), distances_N, explanations))
    table = pd.concat([each[0] for each in gathered], ignore_index=True)
    distances_N = np.concatenate([each[1] for each in gathered])
    if explanations is not None:
        explanations = pd.concat([each[2] for each in gathered], ignore_index=True)
    comparison = compare(loaded.training.summary, study, known, distances_N)
    return table.assign(**comparison.columns), comparison, explanations
