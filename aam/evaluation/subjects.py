"""Subjects of samples, which every split keeps together in training, validation or test.

Samples with equal reads are one sample, and samples of one group belong to one subject. Equal group
names in two studies are one subject if their samples or the user say so, see `aam.data.identity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from aam.arrays import Rows
from aam.console import info, warn
from aam.contract.errors import first_few, repeated
from aam.contract.options.groups import GroupValues
from aam.data.identity import Abundances, joined, named_pairs
from aam.data.metadata import Metadata


@dataclass(frozen=True)
class Subjects:
    """Subjects of N samples."""

    units_N: Rows  # number of the subject of each sample, across studies
    groups: list[str] | None = None  # names within a study; None if each sample is a group
    column: str | None = None  # metadata column with the groups


def find_subjects(
    column: str | None,
    values: GroupValues,
    metadata: Metadata | None,
    sample_ids: Sequence[str],
    abundances: Abundances | None = None,
    studies: Sequence[str] | None = None,
) -> Subjects:
    """Find the subjects of samples; report copies of samples, and groups in several studies.

    Without abundances, samples are identified by their ids only.
    """
    none = np.empty((0, 2), dtype=np.int64)
    copies = none if abundances is None else abundances.equal_pairs()
    if len(copies):
        warn(
            f"{len(np.unique(copies))} samples have the same reads as another sample: "
            f"{named_pairs(copies, sample_ids)}. Every split keeps such copies together."
        )
    names, links = list(sample_ids), none
    if column is not None:
        assert metadata is not None, "--group-column needs --metadata"
        names = metadata.groups(column, sample_ids).tolist()
        if studies is not None:
            links = _equal_groups(column, values, names, studies, abundances)
            shared = set(repeated(name for name, _ in set(zip(names, studies, strict=True))))
            names = [
                f"{name} ({study})" if name in shared else name
                for name, study in zip(names, studies, strict=True)
            ]
    _, first, code_N = np.unique(names, return_index=True, return_inverse=True)
    of_group = np.stack([first[code_N], np.arange(len(names))], axis=1)
    units_N = joined(len(names), np.concatenate([of_group, copies, links]))
    alike = none if abundances is None else abundances.alike_pairs()
    alike = alike[units_N[alike[:, 0]] != units_N[alike[:, 1]]]
    if len(alike):
        warn(
            "Some samples are as similar as two sequencing runs of one sample: "
            f"{named_pairs(alike, sample_ids)}. If they are one sample, give them the same value "
            "in a --group-column."
        )
    if studies is not None:
        copies = copies[np.array([studies[i] == studies[j] for i, j in copies], dtype=np.bool_)]
    if len(copies):
        group_N = joined(len(names), np.concatenate([of_group, copies]))
        names = [names[row] for row in np.unique(group_N, return_index=True)[1][group_N].tolist()]
    return Subjects(units_N, None if column is None and not len(copies) else names, column)


def _equal_groups(
    column: str,
    values: GroupValues,
    names: Sequence[str],
    studies: Sequence[str],
    abundances: Abundances | None,
) -> Rows:
    """Return pairs of samples [P, 2] in different studies whose equal groups are one subject."""
    rows_of: dict[str, dict[str, list[int]]] = {}
    for row, (name, study) in enumerate(zip(names, studies, strict=True)):
        rows_of.setdefault(study, {}).setdefault(name, []).append(row)
    links, same, shared = [], set[str](), set[str]()
    for pair in combinations(sorted(rows_of), 2):
        common = rows_of[pair[0]].keys() & rows_of[pair[1]].keys()
        shared |= common
        is_same = values == "same"
        if values == "auto" and common and abundances is not None:
            rows = [np.sort(np.concatenate([*rows_of[study].values()])) for study in pair]
            first, second = (abundances.take(study_rows) for study_rows in rows)
            is_same = first.same_names(second, [[names[row] for row in study] for study in rows])
        if is_same:
            same |= common
            links += [[rows_of[study][name][0] for study in pair] for name in common]
    for group_values, identity, opposite in (
        (same, "one subject", "distinct"), (shared - same, "different subjects", "same"),
    ):  # fmt: skip
        if group_values:
            reason = f", judged by their samples (otherwise add --group-values {opposite})"
            info(
                f"Equal values of '{column}' in several studies are {identity}"
                f"{reason if values == 'auto' else ''}: {first_few(sorted(group_values))}."
            )
    return np.array(sorted(links), dtype=np.int64).reshape(-1, 2)
