"""`aam evaluate`: metrics of predictions against metadata."""

from __future__ import annotations

from aam.console import info, warn
from aam.contract.files import refuse_existing, write_json
from aam.contract.options.commands.use import Evaluate
from aam.contract.options.study import ordered_levels
from aam.data.metadata import ID_HEADER, read_metadata, rows_where
from aam.data.metrics import metrics_by, summary
from aam.data.predictions import join_labels, other_labels, read_predictions
from aam.report.terminal import show


def run(options: Evaluate) -> None:
    """Print the metrics, and write them as JSON if --output is given."""
    if options.output is not None:
        refuse_existing(options.output, options.overwrite)
    frame = read_predictions(options.predictions, options.metadata_column)
    metadata = read_metadata(options.metadata)
    frame = frame.iloc[rows_where(options.where, metadata, frame[ID_HEADER].tolist())]
    levels, column = ordered_levels(options.ordinal), options.metadata_column
    scored, ids = join_labels(frame, metadata, column, options.classifier, levels)
    # Metrics of a column that the model does not predict look like those of a bad model.
    if other := other_labels(frame, scored, ids):
        warn(
            f"'{column}' differs from the true values in '{options.predictions}' in {other} of "
            f"{len(ids)} samples: another column was predicted, or the metadata changed since."
        )
    found = summary(scored, column)
    if options.by:
        found["by"] = {
            column: metrics_by(scored, metadata.values(column, ids).tolist())
            for column in options.by
        }
    if options.output is not None:
        write_json(options.output, found)
    show(found)
    if options.output is not None:
        info(f"Metrics: {options.output}")
