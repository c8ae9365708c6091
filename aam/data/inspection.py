"""Inspection of a study before any training: all that is wrong or noteworthy, in one pass.

Each part is read by the reader that the other commands use; what a reader refuses is a finding, and
the other parts are inspected all the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from aam.contract.errors import AamError, first_few
from aam.contract.options.study import TableOptions
from aam.data.metadata import Metadata, as_numbers, read_metadata
from aam.data.rarefaction import auto_depth
from aam.data.sequences import as_dna, is_sequence, sequences_of
from aam.data.study import load_table
from aam.data.table import FeatureTable
from aam.data.unifrac.phylogeny import read_phylogeny

Severity = Literal["fact", "warning", "error"]

T = TypeVar("T")

SHALLOW = 1000
"""Reads below which a sample says little about its rare ASVs."""

REGIONS = 20
"""Nucleotides by which the lengths of one region differ at most, about."""

FEW_OF_CLASS = 5
"""Samples that a class needs, one for each of the default folds."""

FEW_VALUES = 20
"""Different numbers above which a column is taken for a number."""


SUBJECTS = re.compile(
    r"subject|host|patient|individual|participant|infant|animal|donor", re.IGNORECASE
)
"""Names of columns that name whom samples were taken from."""


@dataclass(frozen=True)
class StudyFinding:
    """Fact, warning or error about a study.

    Attributes:
        severity: "fact", "warning" or "error"; other commands refuse a study with an error.
        subject: part of the study, such as "reads" or a column of the metadata.
        text: one sentence or phrase for the user.
        status: exit status of an error; 0 for a fact or a warning.
    """

    severity: Severity
    subject: str
    text: str
    status: int = 0


@dataclass
class Inspection:
    """Findings about a study, in the order of its parts."""

    findings: list[StudyFinding] = field(default_factory=list)

    def fact(self, subject: str, text: str) -> None:
        """Add a fact, which needs no action."""
        self.findings.append(StudyFinding("fact", subject, text))

    def warn(self, subject: str, text: str) -> None:
        """Add a warning, which the user should look at."""
        self.findings.append(StudyFinding("warning", subject, text))

    def read(self, subject: str, reader: Callable[[], T]) -> T | None:
        """Return what a reader returns; None, and a finding, where it refuses the data."""
        try:
            return reader()
        except AamError as error:
            self.findings.append(StudyFinding("error", subject, str(error), error.status))
            return None

    @property
    def status(self) -> int:
        """Exit status of the first error; 0 without one."""
        return next((one.status for one in self.findings if one.status), 0)


def inspect(
    input: TableOptions, tree: Path | None, metadata: Path | None, column: str | None
) -> Inspection:
    """Inspect the files of a study.

    Args:
        input: options of the feature table and its sequences.
        tree: Newick file of the phylogeny; None: not inspected.
        metadata: TSV file with metadata of the samples; None: not inspected.
        column: metadata column of the target; None: not inspected.
    """
    found = Inspection()
    table = found.read("table", lambda: load_table(input))
    if table is not None:
        _table(found, table)
        _sequences(found, table, input.sequences)
        if tree is not None:
            _tree(found, table, tree)
    if metadata is None:
        return found
    described = found.read("metadata", lambda: read_metadata(metadata))
    if described is None:
        return found
    ids = list(described.ids) if table is None else list(table.sample_ids)
    shared = [name for name in ids if name in set(described.ids)]
    found.fact("metadata", f"{len(described.ids)} samples, {len(described.columns)} columns")
    if table is not None:
        _overlap(found, ids, described, shared)
    if shared:
        for name in described.columns:
            _column(found, described, name, shared)
        if column is not None and found.read("target", lambda: _required(described, column)):
            _target(found, described, column, shared)
    return found


def _required(metadata: Metadata, column: str) -> bool:
    metadata.require(column)
    return True


def _table(found: Inspection, table: FeatureTable) -> None:
    reads_N, richness_N = table.reads, table.richness
    samples, asvs = len(table.sample_ids), len(table.feature_ids)
    entries = int(richness_N.sum())
    found.fact("table", f"{samples} samples x {asvs} ASVs, {entries / (samples * asvs):.1%} not 0")
    found.fact("reads", f"{_range(reads_N)} in a sample, {int(reads_N.sum())} in all")
    found.fact("ASVs of a sample", _range(richness_N))
    depth = auto_depth(reads_N)
    lost = [table.sample_ids[row] for row in np.flatnonzero(reads_N < depth).tolist()]
    text = (
        f"{depth} reads (auto); samples that are shallower: {first_few(lost) if lost else 'none'}"
    )
    found.fact("rarefaction depth", text)
    shallow = [table.sample_ids[row] for row in np.flatnonzero(reads_N < SHALLOW).tolist()]
    if shallow:
        found.warn("reads", f"samples with less than {SHALLOW}: {first_few(shallow)}")
    if int(table.counts.max()) == 1:
        found.warn("table", "every count is 0 or 1: presences, not reads")
    if samples > asvs:
        found.warn("table", "more samples than ASVs: a table of taxa, or a transposed one")


def _sequences(found: Inspection, table: FeatureTable, path: Path | None) -> None:
    if path is None and not all(map(is_sequence, table.feature_ids)):
        kept = [name for name in table.feature_ids if not is_sequence(name)]
        form = "taxa" if any(";" in name or "__" in name for name in kept) else "hashes or names"
        found.warn("sequences", f"ids of ASVs are {form}, {first_few(kept)}: give --sequences")
    read = found.read("sequences", lambda: sequences_of(table.feature_ids, path))
    if read is None:
        return
    lengths = np.array([len(one) for one in read])
    found.fact("sequences", f"{_range(lengths)} nucleotides")
    if np.ptp(lengths) > REGIONS:
        found.warn("sequences", "lengths differ much: several regions, or sequences not trimmed")
    if repeated := len(read) - len({as_dna(one) for one in read}):
        found.warn(
            "sequences", f"{repeated} are those of another ASV too (`aam prepare` joins them)"
        )
    starts = Counter(as_dna(one)[:4] for one in read).most_common(1)[0]
    found.fact("region", f"{starts[1] / len(read):.0%} of the sequences begin with {starts[0]}")


def _tree(found: Inspection, table: FeatureTable, path: Path) -> None:
    read = found.read("tree", lambda: read_phylogeny(path, table.feature_ids, True, True))
    if read is None:
        return
    _, columns = read
    asvs, absent = len(table.feature_ids), len(table.feature_ids) - len(columns)
    found.fact("tree", f"has {len(columns)} of {asvs} ASVs")
    if absent:
        share = 1 - table.counts[:, columns].sum() / table.counts.sum()
        found.warn(
            "tree", f"lacks {absent} ASVs with {share:.1%} of the reads: --drop-missing-asvs"
        )


def _overlap(
    found: Inspection, ids: Sequence[str], metadata: Metadata, shared: Sequence[str]
) -> None:
    found.fact("ids", f"{len(shared)} of {len(ids)} samples of the table have metadata")
    if len(shared) == len(ids):
        return
    absent = [name for name in ids if name not in set(shared)]
    known, reason = set(metadata.ids) - set(shared), ""
    for why, change in LIKENESS.items():
        alike = {change(name) for name in known} & {change(name) for name in absent}
        if len(alike) > len(absent) // 2:
            reason = f"; they are alike apart from {why}"
            break
    text = f"samples without metadata: {first_few(absent)}{reason}"
    if shared:
        found.warn("ids", text)
    else:
        error = metadata.no_common_sample(ids)
        found.findings.append(StudyFinding("error", "ids", f"{error}{reason}", error.status))


LIKENESS: dict[str, Callable[[str], str]] = {
    "upper and lower case": str.lower,
    "'.', '_' and '-'": lambda name: re.sub(r"[._-]", ".", name),
    "zeros at the end or the beginning": lambda name: name.strip("0").rstrip("."),
    "a prefix": lambda name: re.split(r"[._-]", name, maxsplit=1)[-1],
    "a suffix": lambda name: re.split(r"[._-]", name, maxsplit=1)[0],
}
"""Likely reason for ids that differ -> what makes them equal."""


def _column(found: Inspection, metadata: Metadata, name: str, ids: Sequence[str]) -> None:
    values = metadata.values(name, ids).tolist()
    known = [value for value in values if value]
    subject, missing = name, len(values) - len(known)
    counts = Counter(known)
    parts = [f"{missing} of {len(values)} missing"] if missing else []
    if not known:
        found.warn(subject, "empty")
        return
    numbers_N = as_numbers(known)
    if len(counts) == 1:
        found.warn(subject, f"one value only, '{known[0]}'")
    elif not np.isnan(numbers_N).any() and len(counts) > FEW_VALUES:
        low, middle, high = np.percentile(numbers_N, [0, 50, 100])
        found.fact(subject, _joined(f"numbers, {low:g} to {high:g}, median {middle:g}", parts))
    elif len(counts) == len(known) > FEW_VALUES:
        found.fact(subject, _joined("a name of each sample", parts))
    else:
        shown = [f"{value} ({times})" for value, times in counts.most_common(6)]
        more = ["..."] if len(counts) > 6 else []
        found.fact(subject, _joined(f"{len(counts)} values: {', '.join(shown + more)}", parts))
    cases = Counter(value.lower() for value in counts)
    if variants := [value for value in counts if cases[value.lower()] > 1]:
        found.warn(subject, f"values that differ in case alone: {first_few(variants)}")


def _target(found: Inspection, metadata: Metadata, column: str, ids: Sequence[str]) -> None:
    """Add what `aam train` does with a column, and the groups that a random split would divide."""
    values = metadata.values(column, ids).tolist()
    known = [(name, value) for name, value in zip(ids, values, strict=True) if value]
    counts = Counter(value for _, value in known)
    numeric = not np.isnan(as_numbers(list(counts))).any()
    if not numeric:
        found.warn("target", f"'{column}' has words: aam train needs --classifier or --ordinal")
    elif len(counts) <= 2:
        found.warn(
            "target", f"'{column}' has {len(counts)} numbers: --classifier, if they are names"
        )
    if not numeric:
        if rare := [value for value, times in counts.items() if times < FEW_OF_CLASS]:
            found.warn(
                "target", f"classes with less than {FEW_OF_CLASS} samples: {first_few(rare)}"
            )
        largest = counts.most_common(1)[0]
        found.fact(
            "target", f"always guessing '{largest[0]}' is right for {largest[1] / len(known):.0%}"
        )
    named = [name for name, _ in known]
    for name, groups, alike in _groups(metadata, column, named):
        more = f", and {alike:.0%} of them have one value of '{column}'" if alike > 0.5 else ""
        text = f"{groups} of '{name}' have several samples{more}"
        found.warn("groups", f"{text}: a random split leaks, give --group-column {name}")


def _groups(
    metadata: Metadata, column: str, ids: Sequence[str]
) -> Iterator[tuple[str, int, float]]:
    """Yield columns that look like subjects: their groups and the share with one target value."""
    target = metadata.values(column, ids)
    for name in metadata.columns:
        values = metadata.values(name, ids)
        names, codes_N, sizes = np.unique(values, return_inverse=True, return_counts=True)
        repeated = np.flatnonzero((sizes > 1) & (names != ""))
        looks = SUBJECTS.search(name)
        if name == column or not looks or not 2 < len(names) < len(ids) or not len(repeated):
            continue
        alike = [len(np.unique(target[codes_N == code])) == 1 for code in repeated]
        yield name, len(repeated), float(np.mean(alike))


def _range(values: Any) -> str:
    low, middle, high = np.percentile(values, [0, 50, 100])
    return f"{low:.0f} to {high:.0f}, median {middle:.0f}"


def _joined(text: str, parts: Sequence[str]) -> str:
    return "; ".join([text, *parts])
