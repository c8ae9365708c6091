"""Checks of the options of `aam train` that need no input, and the choice of the members.

They import neither PyTorch nor scikit-learn: a refusal takes half a CPU-second.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from aam.contract.errors import UsageError
from aam.contract.options.commands.train import Train
from aam.contract.options.groups import TRANSFORMER
from aam.environment import read_environment
from aam.evaluation.splits import check_groups


def resolve(options: Train) -> Train:
    """Check the options of a training, and choose its members and folds.

    Without the transformer `auto` folds and repeats remain, see `split_samples`; with it they mean
    one split, since it takes long to train.
    """
    check_groups(options.target.metadata_column, options.split.group_column, options.study_column)
    is_distributed, number = several_processes(options.scale.fsdp), options.scale.processes
    if not options.uses_network and (number > 1 or is_distributed):
        # Each process would train the same models.
        started = f"--processes {number}" if number > 1 else "started by torchrun or srun"
        evidence = f"{started}, with --members {' '.join(options.chosen_members)}"
        remedy = "start one process, or add transformer to --members"
        raise UsageError("Several processes for models that train in one process", evidence, remedy)
    members, folds, repeats = choose_members(options), options.folds, options.repeats
    if TRANSFORMER in members:
        if is_distributed and options.covariates.columns:
            raise UsageError(
                "The transformer reads metadata columns in one process only",
                "--categorical-columns or --numeric-columns with several processes",
                "train in one process, or leave the columns out",
            )
        folds = 1 if folds == "auto" else folds
        repeats = 1 if repeats == "auto" else repeats
    if folds == 1 and repeats not in ("auto", 1):
        remedy = "give --folds 2 or more, or leave out --repeats"
        raise UsageError("Repeats of a single split", f"--folds 1 --repeats {repeats}", remedy)
    return dataclasses.replace(options, members=members, folds=folds, repeats=repeats)


def several_processes(fsdp: bool) -> bool:
    """Return whether the command is one of several processes, or starts them."""
    return fsdp or read_environment(os.environ).world_size > 1


def choose_members(options: Train) -> tuple[str, ...]:
    """Return the members of the options, or the default ones."""
    members = options.members or options.chosen_members
    if len(set(members)) < len(members):
        raise UsageError("Duplicate member", f"--members {' '.join(members)}", "name each once")
    resumed = options.run.resume_from
    if TRANSFORMER not in members and isinstance(resumed, Path):
        evidence = f"--resume-from {resumed} with --members {' '.join(members)}"
        remedy = "add transformer to --members, or give --resume-from auto"
        raise UsageError("Only the transformer has checkpoints to resume from", evidence, remedy)
    return members


def check_targets(options: Train, columns: Sequence[str]) -> None:
    """Refuse options that one target alone can have."""
    evidence = f"--metadata-column {options.target.metadata_column}"
    if len(set(columns)) < len(columns):
        raise UsageError("Duplicate target", evidence, "name each column once")
    if options.target.ordinal:
        remedy = "train an ordinal target in a run of its own"
        raise UsageError("--ordinal with several targets", evidence, remedy)
    if options.run.resume_from not in (None, "auto"):
        remedy = "give --resume-from auto and the --output-dir of the run"
        raise UsageError("A checkpoint belongs to one target", evidence, remedy)
    if TRANSFORMER in options.members and several_processes(options.scale.fsdp):
        remedy = "train in one process, or the targets in separate runs"
        raise UsageError("The transformer with several targets and processes", evidence, remedy)
