"""Shards of the samples of a table, or of the tiles of a matrix: resumption and merging.

The run record of a shard has its rows, the SHA-256 of its file, and the options and inputs of its
command, so that shards of different runs are never joined (`aam.contract.shards` has the files).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

from aam.console import info
from aam.contract import run_record, schema
from aam.contract.errors import (
    AamError,
    CannotCreate,
    DataError,
    MissingInput,
    UsageError,
    first_few,
)
from aam.contract.files import atomic_write, is_regular, sha256
from aam.contract.options.field import ZERO_OR_MORE, flat
from aam.contract.shards import Shard, file_of, folder_of
from aam.data.study import Study

FACTS = "shard"
"""Key of the facts of a shard in its run record."""

_SHARD_RECORD = {
    "inputs": {str: run_record.INPUT},
    FACTS: {"samples": Annotated[int, ZERO_OR_MORE], "sha256": str},
}

_MAY_DIFFER = ("asv_vectors_dir", "shard", "overwrite", "device", "max_memory_gb", "num_workers")
"""Options of which the results do not depend, or by which shards differ."""


def take_shard(study: Study, options: Any) -> Study:
    """Return the samples of the shard of `options`; the study itself without --shard.

    Args:
        study: the complete study.
        options: options of a command with --shard ("I/N" or None) and --batch-size.

    Raises:
        UsageError: there are more shards than batches.
    """
    if options.shard is None:
        return study
    shard, samples = Shard.parse(options.shard), len(study.table.sample_ids)
    rows = shard.rows(samples, options.batch_size)
    batches = -(-samples // options.batch_size)
    if shard.count > batches:
        raise UsageError(
            "More shards than batches",
            f"--shard {shard} of {samples} samples, {batches} batches of {options.batch_size}",
            f"use {batches} shards or fewer",
        )
    part = study.part(rows)
    info(
        f"Shard {shard}: samples {rows.start + 1} to {rows.stop} of {samples}, with "
        f"{len(part.tokens_FL)} of {len(study.tokens_FL)} ASVs."
    )
    return part


def finished(command: str, options: Any) -> dict[str, object] | None:
    """Return the facts of the shard of `options` if an earlier run completed it; None otherwise.

    Args:
        command: name of the command, such as "predict".
        options: its options, with --shard and --overwrite.

    Raises:
        CannotCreate: the file is of other inputs or options, and --overwrite is not given; the
            folder holds shards of another number.
    """
    shard, file = Shard.parse(options.shard), file_of(options)
    assert file is not None
    present = [found for path in file.parent.glob("*") if (found := Shard.of_file(path))]
    if others := sorted({found.count for found in present} - {shard.count}):
        parts = " and of ".join(map(str, others))
        raise CannotCreate(
            "The folder holds shards of another number",
            f"--shard {shard}, and '{file.parent}' has parts of {parts}",
            "give the same number, or remove the folder",
        )
    if options.overwrite or not is_regular(file):
        return None
    record = _read_record(file)
    if record is None or record[FACTS]["sha256"] != sha256(file):
        return None  # The process ended between the two files: the shard is computed again.
    now = run_record.describe(command, options)
    if different := _difference(record, now):
        raise CannotCreate(
            "The shard exists, of another run",
            f"'{file}' has other {different}",
            "add --overwrite to replace it, or choose another --output",
        )
    info(f"Shard {shard} is complete: {file}")
    facts: dict[str, Any] = record[FACTS]
    return {FACTS: facts}


def facts_of(file: Path, samples: int) -> dict[str, object]:
    """Return the facts of a shard's file for its run record: number of samples and SHA-256.

    Args:
        file: complete file of the shard.
        samples: number of samples in it.
    """
    return {FACTS: {"samples": samples, "sha256": sha256(file)}}


def merge(output: Path) -> dict[str, Any]:
    """Join the shards of a table or matrix; return the number of samples and the inputs.

    Raises:
        MissingInput: there are no shards, or not all.
        DataError: shards of different runs or numbers, or a file that is not as it was written.
    """
    folder = folder_of(output)
    found = {shard: path for path in folder.glob("*") if (shard := Shard.of_file(path))}
    if not found:
        remedy = "name the --output of `aam predict --shard` or `aam unifrac --shard`, or "
        remedy += "embeddings.tsv of `aam embed`"
        raise MissingInput("No shards", f"'{folder}' has none", remedy)
    counts = sorted({shard.count for shard in found})
    if len(counts) > 1:
        evidence = f"'{folder}' has parts of {' and of '.join(map(str, counts))}"
        raise DataError("Shards of different numbers", evidence, "remove those of one number")
    files = [Shard(number, counts[0]).file(output) for number in range(1, counts[0] + 1)]
    records = [_read_record(file) if is_regular(file) else None for file in files]
    absent = [str(n) for n, record in enumerate(records, 1) if record is None]
    if absent:
        raise MissingInput(
            "Shards are missing or incomplete",
            f"{first_few(absent)} of {counts[0]} in '{folder}'",
            f"run the command with --shard {absent[0]}/{counts[0]} and so on",
        )
    complete = [record for record in records if record is not None]
    for file, record in zip(files, complete, strict=True):
        if different := _difference(complete[0], record):
            evidence = f"'{file.name}' and '{files[0].name}' have different {different}"
            raise DataError("Shards of different runs", evidence, "compute one of them again")
    for file, record in zip(files, complete, strict=True):
        if sha256(file) != record[FACTS]["sha256"]:
            remedy = "compute this shard again with --overwrite"
            raise DataError("A shard has changed since it was written", f"'{file}'", remedy)
    with atomic_write(output) as temporary:
        if complete[0]["command"] == "unifrac":
            # PyTorch takes 2 CPU-seconds to import, which predictions do without.
            from aam.data.unifrac.tile_files import join_tiles

            samples = join_tiles(files, temporary)
        else:
            samples = sum(int(record[FACTS]["samples"]) for record in complete)
            _join_rows(files, temporary)
    return {"samples": samples, "inputs": complete[0]["inputs"]}


def _join_rows(files: list[Path], output: Path) -> None:
    """Write the rows of all tables below the header of the first."""
    with output.open("wb") as merged:
        for number, file in enumerate(files):
            with file.open("rb") as rows:
                header = rows.readline()
                if number == 0:
                    merged.write(header)
                shutil.copyfileobj(rows, merged)


def _read_record(file: Path) -> dict[str, Any] | None:
    """Read the run record of a shard's file; None if it has none that is complete.

    The record of another shard is none: its file was copied or renamed, and would be joined twice.
    """
    try:
        record = run_record.read(run_record.beside(file))
        schema.parse(_SHARD_RECORD, record, "the record")
        shard = Shard.parse(flat(record["options"])["shard"])
    except (AamError, schema.Mismatch, KeyError):
        return None
    return record if shard == Shard.of_file(file) else None


def _difference(one: dict[str, Any], two: dict[str, Any]) -> str | None:
    """Return what differs between two runs: a version, an input file or an option."""
    if one["aam"] != two["aam"] or one["command"] != two["command"]:
        return "versions of aam"
    flags = {*one["inputs"], *two["inputs"]}
    for flag in sorted(flags):
        if one["inputs"].get(flag, {}).get("sha256") != two["inputs"].get(flag, {}).get("sha256"):
            return f"files for {flag}"
    before, after = flat(one["options"]), flat(two["options"])
    for name in sorted({*before, *after} - {*_MAY_DIFFER}):
        same_file = f"--{name.replace('_', '-')}" in flags
        if before.get(name) != after.get(name) and not same_file:
            return f"values of --{name.replace('_', '-')}"
    return None
