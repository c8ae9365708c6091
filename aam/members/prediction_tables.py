"""Tables of predictions: of held-out samples, and of new samples by a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aam.arrays import F64
from aam.console import Message, collected, info, warn
from aam.contract.options.commands.use import Predict
from aam.contract.options.conditions import no_effect
from aam.contract.options.groups import KERNEL, DeviceOptions, RankOptions, TableOptions, networks
from aam.data.metadata import ID_HEADER
from aam.data.study import Study
from aam.data.targets import OutputRange
from aam.evaluation.calibration import median_codes
from aam.evaluation.folds import Folds
from aam.evaluation.prediction_files import KEYS
from aam.members.explanations import FIRST, explain
from aam.members.member import MemberPrediction, reader
from aam.members.model_file import TrainedModel
from aam.members.output_tables import (
    ALONE,
    NO_VECTORS,
    InferenceSettings,
    RankShare,
    require_finite,
)
from aam.members.samples import Samples
from aam.memory import memory_budget

_BLOCK_BYTES = 2**28  # bytes of the similarities of a block of new samples to ASVs, at most


def held_out_table(
    sample_ids: Sequence[str],
    folds: Folds,
    predictions_MC: F64,
    members: Mapping[str, F64] = MappingProxyType({}),
    half_widths_M: F64 | None = None,
) -> pd.DataFrame:
    """Build the table of held-out predictions: fold, study, actual, and `prediction_columns`."""
    labels = folds.labels
    content: dict[str, object] = {
        ID_HEADER: [sample_ids[row] for row in folds.rows_M],
        **({"repeat": folds.repeat_M} if folds.repeats > 1 else {}),
        "fold": folds.fold_M,
        **({"study": folds.study_M} if folds.study_M else {}),
        "split": folds.part,
        "actual": label_names(folds.held_out.values, labels.classes or labels.levels),
    }
    predicted = prediction_columns(
        predictions_MC, labels.classes, labels.levels, members, half_widths_M, folds.scale.range
    )
    return pd.DataFrame(content | predicted)


def prediction_columns(
    predictions_NC: F64,
    classes: Sequence[str],
    levels: Sequence[str],
    members: Mapping[str, F64],
    half_widths_N: F64 | None,
    outputs: OutputRange,
) -> dict[str, object]:
    """Return the columns predicted, rank, p_<class>, lower, upper, and columns of each member."""

    def of(prefix: str, found_NC: F64) -> dict[str, object]:
        if not (names := classes or levels):
            return {f"{prefix}predicted": found_NC[:, 0]}
        if prefix and levels:  # only the ensemble has probabilities of levels
            return {f"{prefix}rank": found_NC[:, 0]}
        chances_NC = found_NC[:, -len(names) :]
        codes_N = chances_NC.argmax(axis=1) if classes else median_codes(chances_NC)
        columns: dict[str, object] = {f"{prefix}predicted": label_names(codes_N, names)}
        if levels:
            columns["rank"] = found_NC[:, 0]
        return columns | {f"{prefix}p_{name}": chances_NC[:, c] for c, name in enumerate(names)}

    columns = of("", predictions_NC)
    if half_widths_N is not None and np.isfinite(half_widths_N).all():
        columns["lower"] = outputs.clip(predictions_NC[:, 0] - half_widths_N)
        columns["upper"] = outputs.clip(predictions_NC[:, 0] + half_widths_N)
    for name, member_NC in members.items():
        columns |= of(f"{name}_", member_NC)
    return columns


def join_targets(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Join tables of samples: columns of a target get its name as prefix, `COLUMN_predicted`."""
    keys = [ID_HEADER]
    # `split` of new samples is a comparison with the training data.
    if all("actual" in table for table in tables.values()):
        keys = [name for name in KEYS if all(name in table for table in tables.values())]
    prefixed = (table.set_index(keys).add_prefix(f"{name}_") for name, table in tables.items())
    return pd.concat(list(prefixed), axis=1).reset_index()


def predict_table(
    loaded: TrainedModel,
    options: Predict,
    share: RankShare = ALONE,
    taxa: Mapping[str, str] | None = None,
    first: int = FIRST,
) -> tuple[pd.DataFrame, list[Message], pd.DataFrame | None]:
    """Predict every sample of a table with a model and each of its members."""
    performance = loaded.performance
    if share.ranks.is_main:
        (info if performance.better else warn)(performance.sentence)
    study = loaded.read_study(options.input, options.metadata)
    return predict_study(loaded, study, options, share, taxa, first)


def unwritten(
    input: TableOptions, device: DeviceOptions, model: Path, metadata: Path | None, **options: Any
) -> Predict:
    """Return the options of a prediction whose table is returned, and not written to a file."""
    return Predict(
        input=input,
        device=device,
        scale=RankOptions(),
        vectors=NO_VECTORS,
        model=model,
        output=Path("unwritten.tsv"),
        metadata=metadata,
        **options,
    )


def predict_study(
    loaded: TrainedModel,
    study: Study,
    options: Predict,
    share: RankShare = ALONE,
    taxa: Mapping[str, str] | None = None,
    first: int = FIRST,
) -> tuple[pd.DataFrame, list[Message], pd.DataFrame | None]:
    """Predict every sample of a study with a model and each of its members.

    Return the predictions, the messages of their comparison with the training data, and the
    explanations (None without --explain).
    """
    facts = loaded.facts
    # The whole study is checked before it is divided among ranks: all refuse it, or none.
    known_asvs = loaded.training.known_asvs(study, required=not options.force)
    shard = share.take(study, options.batch_size)
    ids, asvs = shard.table.sample_ids, shard.table.feature_ids
    samples = Samples.of(shard, loaded.read_covariates(options.metadata, ids))
    settings = InferenceSettings(options.batch_size, options.prediction_passes, options.vectors)
    of_networks = networks(tuple(loaded.models))
    if options.prediction_passes > 1 and not of_networks:
        warn(no_effect("the member transformer", "--prediction-passes"))
    # A network reads all samples, in batches, after it has encoded their ASVs once.
    applied = {
        name: loaded.models[name].apply(
            reader(name).read(samples, loaded.relations), facts.outputs.scale, settings
        )
        for name in of_networks
    }
    # Estimators read the similarities of a sample to the ASVs of the table and of the training.
    similarities = min(_BLOCK_BYTES, memory_budget(options.input.max_memory_gb))
    size = max(1, similarities // (4 * (len(asvs) + len(loaded.tokens_FL))))
    blocks = []
    for start in range(0, len(ids), size):
        rows = np.arange(start, min(start + size, len(ids)))
        block = samples.take(rows)
        of_block = {name: prediction.take(rows) for name, prediction in applied.items()}
        predictions_NC, members, columns, distances_N = _predict_block(
            loaded, block, of_block, settings
        )
        explanations = None
        if options.explain is not None:
            means_NC = np.tile(facts.means, (len(rows), 1))
            explanations = explain(
                loaded, block, predictions_NC, members, means_NC, asvs, taxa, first
            )
        blocks.append((pd.DataFrame(columns), distances_N, explanations))
    # The samples of all ranks together are compared with the training samples.
    gathered = [block for of_rank in share.gather(blocks) for block in of_rank]
    table, distances, explained = zip(*gathered, strict=True)
    with collected() as notes:
        columns = loaded.training.compare(study, known_asvs, np.concatenate(distances))
    table = pd.concat(table, ignore_index=True).assign(**columns)
    explanations = None
    if options.explain is not None:
        explanations = pd.concat(explained, ignore_index=True)
    return table, notes, explanations


def _predict_block(
    loaded: TrainedModel,
    samples: Samples,
    applied: Mapping[str, MemberPrediction],
    settings: InferenceSettings,
) -> tuple[F64, dict[str, F64], dict[str, object], F64]:
    """Predict some samples: by the ensemble, by each member, columns of the table, distances."""
    facts, relations = loaded.facts, loaded.relations
    present = samples.present[0]
    compared = loaded.training.read(present, relations)
    members = dict(applied)
    for name, model in loaded.models.items():
        if name not in applied:
            inputs = compared if name == KERNEL else reader(name).read(present, relations)
            members[name] = model.apply(inputs, facts.outputs.scale, settings)
    values = {name: members[name].values_NC for name in loaded.models}
    predictions_NC = facts.ensemble.combine(values, bool(facts.classes))
    require_finite("predictions", samples.sample_ids, predictions_NC)
    with_levels_NC, widths_N = predictions_NC, None
    if facts.odds is not None:
        levels_NC = facts.odds.probabilities(predictions_NC[:, 0])
        with_levels_NC = np.hstack([predictions_NC, levels_NC])
    if not facts.classes:
        widths_N = np.full(len(predictions_NC), facts.ensemble.half_width)
    columns: dict[str, object] = {ID_HEADER: list(samples.sample_ids)} | prediction_columns(
        with_levels_NC, facts.classes, facts.levels, values, widths_N, facts.range
    )
    for name in loaded.models:
        columns |= members[name].columns
    return predictions_NC, values, columns, loaded.training.distances(compared)


def label_names(values_N: NDArray[Any], names: Sequence[str]) -> object:
    """Decode codes or ranks to names; numbers are returned unchanged if `names` is empty."""
    return [names[int(code)] for code in values_N] if names else values_N
