"""`aam merge`: join the shards of predictions, embeddings or a distance matrix."""

from __future__ import annotations

from aam.console import info
from aam.contract.files import refuse_existing
from aam.contract.options.commands.studies import Merge
from aam.data.shards import merge


def run(options: Merge) -> dict[str, object]:
    """Write the table or matrix; return facts for the run record: the inputs of the shards.

    Raises:
        MissingInput, DataError: see `aam.data.shards.merge`.
        CannotCreate: the output exists, or cannot be written.
    """
    refuse_existing(options.output, options.overwrite)
    facts = merge(options.output)
    info(f"{facts['samples']} samples: {options.output}")
    return facts
