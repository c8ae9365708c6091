"""`aam prepare`: write a study as files that other commands memory-map."""

from __future__ import annotations

import os

from aam.console import info
from aam.contract.errors import CannotCreate, UsageError
from aam.contract.files import refuse_existing
from aam.contract.options.commands.studies import Prepare
from aam.data.prepare import prepare
from aam.data.store import is_store, verify
from aam.serialization.folders import atomic_folder


def run(options: Prepare) -> None:
    """Write a store, or verify the checksums of one."""
    output = options.output
    if options.verify:
        for folder in options.table:
            info(f"'{folder}' is intact: the checksums of {verify(folder)} files match.")
        return
    if output is None:
        raise UsageError("Nowhere to write", "--output was not given", "name a folder")
    if stores := [str(table) for table in options.table if is_store(table)]:
        remedy = "use it as it is, or name the files from which it was made"
        raise UsageError("The table is a store already", f"'{stores[0]}'", remedy)
    # Before the tables are read, which takes long. --overwrite replaces a prepared study only.
    if not os.path.isdir(output):  # pathlib's raises for a name that is too long
        refuse_existing(output, overwrite=False)
    elif not options.overwrite:
        raise CannotCreate("The output exists", f"'{output}'", "add --overwrite to replace it")
    elif not is_store(output) and any(output.iterdir()):
        raise CannotCreate(
            "The output is a folder that `aam prepare` did not write",
            f"'{output}'",
            "--overwrite replaces a prepared study only; name another folder",
        )
    with atomic_folder(output, options.overwrite) as folder:
        samples, asvs, entries = prepare(options, folder)
    info(
        f"{samples} samples x {asvs} ASVs, {entries} counts: '{output}'. "
        f"Give it as --table{', and as --metadata' if options.metadata else ''}."
    )
