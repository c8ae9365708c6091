"""Shards: parts of the samples of a table for separate processes, and the files that they write.

With `--shard 3/64` a command writes `OUTPUT.shards/03-of-64.tsv` in place of the table OUTPUT, or
`.h5` in place of a distance matrix, with a run record beside it; `aam merge` joins all shards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.contract.errors import UsageError

EMBEDDINGS = "embeddings.tsv"
LARGEST = 100_000
"""Most shards; a Slurm array usually allows fewer tasks."""

_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})\Z")
_NAME = re.compile(r"(\d{1,6})-of-(\d{1,6})\.(?:tsv|h5)\Z")


@dataclass(frozen=True)
class Shard:
    """One of `count` shards; `number` is 1 to `count`."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of a value of --shard, such as 3/64.

        Raises:
            UsageError: it is not two numbers, or they are out of range.
        """
        found = _TEXT.match(text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= count <= LARGEST:
            remedy = f"write I/N with I from 1 to N, and N at most {LARGEST}, such as 3/64"
            raise UsageError("Not a shard", f"--shard '{text}'", remedy)
        return cls(number, count)

    @classmethod
    def of_file(cls, path: Path) -> Shard | None:
        """Return the shard whose file has the name of `path`; None for another file."""
        found = _NAME.match(path.name)
        number, count = map(int, found.groups()) if found else (0, 0)
        return cls(number, count) if 1 <= number <= count <= LARGEST else None

    def file(self, output: Path) -> Path:
        """Return the file of this shard of the table `output`."""
        width = len(str(self.count))
        suffix = ".h5" if output.suffix == ".h5" else ".tsv"
        return folder_of(output) / f"{self.number:0{width}}-of-{self.count}{suffix}"

    def rows(self, samples: int, batch_size: int) -> range:
        """Return the samples of this shard: whole batches, so that products have one shape."""
        part = self.part(-(-samples // batch_size))
        return range(part.start * batch_size, min(part.stop * batch_size, samples))

    def part(self, items: int) -> range:
        """Return the items of this shard, of as many; shards differ by one item at most."""
        first, end = (items * k // self.count for k in (self.number - 1, self.number))
        return range(first, end)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def folder_of(output: Path) -> Path:
    """Return the folder of the shards of the table `output`."""
    return output.with_name(f"{output.name}.shards")


def table_of(output: Path | None, output_dir: Path | None) -> Path:
    """Return the table of which the shards are parts, from the values of a command's options."""
    if output_dir is not None:
        return output_dir / EMBEDDINGS
    assert output is not None  # A command with --shard has one of the two.
    return output


def file_of(options: Any) -> Path | None:
    """Return the file of the shard of `options`; None without --shard.

    Raises:
        UsageError: see `Shard.parse`.
    """
    text = getattr(options, "shard", None)
    if text is None:
        return None
    table = table_of(getattr(options, "output", None), getattr(options, "output_dir", None))
    return Shard.parse(text).file(table)
