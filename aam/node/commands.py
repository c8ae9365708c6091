"""Command line that a job runs: the paths in it, and what a restart of the job changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aam.contract.errors import MissingInput
from aam.contract.options import complete_arguments, find, literal_values, specs, split

AUTO = ("--resume-from", "auto")
IN_PLACE = ("--fsdp-sharded-checkpoint",)
"""Options with which every rank writes to the run folder, so all nodes have to share it."""


@dataclass(frozen=True)
class NodeCommand:
    """A command of `aam` with absolute paths.

    Attributes:
        words: the command and its options.
        inputs: option and path of everything that is read.
        outputs: option and path of everything that is written.
        run_folder: the folder of a command that can be resumed, else None.
        writes_folder: the output is a folder, not a file.
        takes_gpu: it computes on a GPU unless it is given `--device cpu`.
    """

    words: tuple[str, ...]
    inputs: tuple[tuple[str, Path], ...]
    outputs: tuple[tuple[str, Path], ...]
    run_folder: Path | None
    writes_folder: bool
    takes_gpu: bool

    @property
    def in_place(self) -> bool:
        """Whether the run folder must stay on the file system that all nodes share."""
        return any(word.replace("_", "-") in IN_PLACE for word in self.words)


def read(words: Sequence[str], folder: Path) -> NodeCommand:
    """Find the paths in a command line and make them absolute.

    Args:
        folder: what relative paths are relative to.
    """
    name, rest = split(list(words))
    command = find(name)
    assert command is not None, name
    known = {spec.flag: spec for spec in specs(command)}
    found: dict[str, list[tuple[str, Path]]] = {"input": [], "output": []}
    result = [*name.split()]
    flag = device = ""
    for word in complete_arguments(command, rest):
        if word.startswith("--"):
            given, equals, value = word.partition("=")
            flag = given.replace("_", "-")
            result.append(given)
            if not equals:
                continue
            word = value
        spec = known.get(flag)
        if spec and spec.role != "value" and word not in ("None", *literal_values(spec.type)):
            word = os.path.normpath(folder / word)
            found[spec.role].append((flag, Path(word)))
        elif flag == "--device" and word != flag:
            device = word
        result.append(word)
    resumable = "--resume-from" in known
    folders = [path for flag, path in found["output"] if flag == "--output-dir"]
    return NodeCommand(
        words=tuple(result),
        inputs=tuple(found["input"]),
        outputs=tuple(found["output"]),
        run_folder=folders[-1] if resumable and folders else None,
        writes_folder="--output-dir" in known,
        takes_gpu="--device" in known and device != "cpu",
    )


def require_inputs(command: NodeCommand) -> None:
    """Check that every input can be read.

    Raises:
        MissingInput: names the option and the path.
    """
    for flag, path in command.inputs:
        if not path.exists():
            evidence = f"'{path}' does not exist, or is on a file system that this job does not see"
            raise MissingInput(f"No file for {flag}", evidence, "check the path")
        if not os.access(path, os.R_OK):
            remedy = "ask its owner for permission to read it"
            raise MissingInput(f"No access for {flag}", f"'{path}' cannot be read", remedy)


def resumed(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a job that starts again: it continues its own run.

    >>> resumed(["pretrain", "--overwrite", "--resume-from", "a.ckpt", "--seed", "1"])
    ('pretrain', '--seed', '1', '--resume-from', 'auto')
    """
    kept: list[str] = []
    skipping = False
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--"):
            skipping = flag == "--resume-from"
        if not skipping and flag not in ("--overwrite", "--no-overwrite"):
            kept.append(word)
    return (*kept, *AUTO)
