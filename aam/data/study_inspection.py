"""Inspection of a study before training (`aam inspect`): facts, warnings and errors in one pass.

Every file is read by the reader that all commands use. An error of one reader becomes a finding,
and the other files are still inspected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from aam.console import collected
from aam.contract.errors import AamError, first_few, shortened
from aam.contract.options.groups import TableOptions
from aam.data.formats.tables import TableBlocks, open_blocks
from aam.data.formats.text import likely_difference
from aam.data.metadata import Metadata, as_numbers, read_metadata, warn_of_codes
from aam.data.phylogeny import read_phylogeny
from aam.data.sequences import as_dna, encode, sequences_of
from aam.data.study import Study, load_table
from aam.data.table import FeatureTable, auto_depth

Severity = Literal["fact", "warning", "error"]

ColumnKind = Literal["numbers", "categories", "names", "one value", "empty"]
"""Type of the values of a column; "names" differ in every sample."""

T = TypeVar("T")

SHALLOW = 1000  # reads; a sample with fewer says little about its rare ASVs
REGIONS = 20  # nucleotides by which lengths differ within one region, at most

SIMILAR = (0.7, 0.45, 0.05)
"""Agreement of the first 50 letters with the most frequent letter at each position, within one
region: smallest mean (four studies have 0.81 to 0.89), smallest agreement of a sequence, and share
of the sequences that may have less."""

MAX_ALIKE = 3  # constant or empty columns that get a line each; more share one line
FEW_VALUES = 20  # distinct numbers up to which a column counts as categorical


@dataclass(frozen=True)
class StudyFinding:
    """Finding about a study: a fact, a warning or an error."""

    severity: Severity  # an error stops every other command
    subject: str  # such as "reads" or a column of the metadata
    text: str  # one sentence or phrase for the user
    status: int = 0  # exit status of an error; 0 for a fact or a warning


@dataclass(frozen=True)
class MetadataColumn:
    """Column of the metadata, restricted to the samples of the table that have metadata."""

    name: str
    kind: ColumnKind
    values: Sequence[str]  # value of each sample; "" if it is missing
    text: str  # summary for the user


@dataclass
class Inspection:
    """Findings about a study, and the data that could be read."""

    findings: list[StudyFinding] = field(default_factory=list)  # file by file
    study: Study | None = None  # without sequences if these are invalid; None without a table
    metadata: Metadata | None = None  # None without valid metadata
    columns: list[MetadataColumn] = field(default_factory=list)  # empty without common samples
    # description of two sets of ids, number of common ids, size of the first set
    overlaps: list[tuple[str, int, int]] = field(default_factory=list)

    def fact(self, subject: str, text: str) -> None:
        """Add a fact."""
        self.findings.append(StudyFinding("fact", subject, text))

    def warn(self, subject: str, text: str) -> None:
        """Add a warning."""
        self.findings.append(StudyFinding("warning", subject, text))

    def read(self, subject: str, reader: Callable[[], T]) -> T | None:
        """Return the data of a reader; if it raises an error, add a finding and return None."""
        read, refused = None, []
        with collected() as messages:
            try:
                read = reader()
            except AamError as error:
                refused.append(StudyFinding("error", subject, str(error), error.status))
        for message in messages:
            (self.warn if message.is_warning else self.fact)(subject, message.text)
        self.findings += refused
        return read

    @property
    def status(self) -> int:
        """Exit status of the first error; 0 without one."""
        return next((finding.status for finding in self.findings if finding.status), 0)


def inspect(input: TableOptions, tree: Path | None, metadata: Path | None) -> Inspection:
    """Inspect the files of a study: table, sequences, tree and metadata."""
    inspection = Inspection()
    names: FeatureTable | TableBlocks | None
    names = table = inspection.read("table", lambda: load_table(input))
    if table is None:
        # Samples without reads are an error; the samples with reads are inspected all the same.
        with collected(), suppress(AamError):
            names = table = load_table(replace(input, drop_empty_samples=True))
    if table is not None:
        _table(inspection, table)
    else:
        # If the counts are invalid, the ids may still be compared.
        with collected(), suppress(AamError):
            names = open_blocks(input.table)
    if names is not None and len(names.feature_ids):
        asvs = names.feature_ids
        tokens_FL = _sequences(inspection, asvs, input.sequences)
        if table is not None:
            study = Study(table, tokens_FL)
            inspection.study = inspection.read("sequences", study.sum_equal_sequences)
        if tree is not None:

            def columns_of_tree() -> npt.NDArray[np.int64]:
                with collected():  # the warning below names the missing ASVs as well
                    return read_phylogeny(tree, asvs, drop_missing=True)[1]

            columns = inspection.read("tree", columns_of_tree)
            if columns is not None:
                inspection.overlaps.append(("ASVs in the tree", len(columns), len(asvs)))
                inspection.fact("tree", f"has {len(columns)} of {len(asvs)} ASVs")
                if absent := len(asvs) - len(columns):
                    of_reads = ""
                    if table is not None:
                        share = 1 - table.counts[:, columns].sum() / table.counts.sum()
                        of_reads = f" with {share:.1%} of the reads"
                    inspection.warn(
                        "tree",
                        f"lacks {absent} ASVs{of_reads}: --drop-missing-asvs leaves them out",
                    )
    if metadata is None:
        return inspection
    described = inspection.metadata = inspection.read("metadata", lambda: read_metadata(metadata))
    if described is None:
        return inspection
    described_ids = set(described.ids)
    ids = described.ids if names is None else names.sample_ids
    shared = [name for name in ids if name in described_ids]
    inspection.fact("metadata", f"{len(described_ids)} samples, {len(described.columns)} columns")
    if names is not None:
        inspection.fact("ids", f"{len(shared)} of {len(ids)} samples of the table have metadata")
        inspection.overlaps += [
            ("samples of the table with metadata", len(shared), len(ids)),
            ("samples of the metadata in the table", len(shared), len(described.ids)),
        ]
        if not shared:
            error = described.no_common_sample(ids)
            inspection.findings.append(StudyFinding("error", "ids", str(error), error.status))
        elif len(shared) < len(ids):
            likely = likely_difference(ids, described.ids)
            reason = f"; they differ in {likely} from ids of the metadata" if likely else ""
            unmatched = first_few(name for name in ids if name not in described_ids)
            inspection.warn("ids", f"samples without metadata: {unmatched}{reason}")
    if shared:
        inspection.columns = [
            _column(inspection, described, name, shared) for name in described.columns
        ]
        # A public study has dozens of columns with one value.
        for kind, title in (("one value", "one value only"), ("empty", "empty")):
            alike = {
                column.name: column.text for column in inspection.columns if column.kind == kind
            }
            if len(alike) > MAX_ALIKE:
                findings = inspection.findings
                inspection.findings = [f for f in findings if alike.get(f.subject) != f.text]
                inspection.warn("columns", f"{title}: {first_few(alike)}")
    return inspection


def _table(inspection: Inspection, table: FeatureTable) -> None:
    reads_N, richness_N = table.reads, table.richness
    samples, asvs = len(table.sample_ids), len(table.feature_ids)
    entries = int(richness_N.sum())
    inspection.fact(
        "table", f"{samples} samples x {asvs} ASVs, {entries / (samples * asvs):.1%} not 0"
    )
    inspection.fact("ASVs of a sample", _range(richness_N))
    if samples > asvs:
        inspection.warn("table", "more samples than ASVs: a table of taxa, or a transposed one")
    if table.quantity != "reads":
        return
    inspection.fact("reads", f"{_range(reads_N)} in a sample, {int(reads_N.sum())} in all")
    depth = auto_depth(reads_N)
    below = np.flatnonzero(reads_N < depth).tolist()
    left_out = f"leaves out {first_few(table.sample_ids[row] for row in below)}"
    inspection.fact(
        "rarefaction depth",
        f"{depth} reads (auto) {left_out if below else 'keeps all samples'}; of the members of "
        "aam train, the transformer alone rarefies",
    )
    shallow = [table.sample_ids[row] for row in np.flatnonzero(reads_N < SHALLOW).tolist()]
    if shallow:
        inspection.warn("reads", f"fewer than {SHALLOW} in samples {first_few(shallow)}")
    if int(table.counts.max()) == 1:
        inspection.warn("table", "every count is 0 or 1: presences, not reads")


def _sequences(
    inspection: Inspection, names: Sequence[str], path: Path | None
) -> npt.NDArray[np.uint8]:
    """Inspect the sequences of the ASVs; return their tokens, [F, 0] if they are invalid."""
    none = np.empty((len(names), 0), dtype=np.uint8)
    taxa = [name for name in names if ";" in name or "__" in name]
    if path is None and taxa:
        inspection.warn(
            "sequences",
            f"ids that are names of taxa: {first_few(taxa)}; taxa have no sequences, so give the "
            "table of ASVs before it was collapsed",
        )
    read = inspection.read("sequences", lambda: sequences_of(names, path))
    if read is None:
        return none
    tokens_FL = inspection.read("sequences", lambda: encode(read, None))
    lengths = np.array([len(sequence) for sequence in read])
    inspection.fact("sequences", f"{_range(lengths)} nucleotides")
    if np.ptp(lengths) > REGIONS:
        inspection.warn(
            "sequences", "lengths differ much: several regions, or sequences not trimmed"
        )
    starts = Counter(as_dna(sequence)[:4] for sequence in read).most_common(3)
    frequent_starts = ", ".join(f"{start} ({number / len(read):.0%})" for start, number in starts)
    inspection.fact("sequences", f"first letters: {frequent_starts}")
    letters = "".join(as_dna(sequence)[:50].ljust(50, "-") for sequence in read).encode()
    letters_FL = np.frombuffer(letters, np.uint8).reshape(len(read), 50)
    frequent_L = np.array([np.bincount(column).argmax() for column in letters_FL.T])
    agreement_F = (letters_FL == frequent_L).mean(axis=1)
    mean, low, most = SIMILAR
    if agreement_F.mean() < mean or (agreement_F < low).mean() > most:
        inspection.warn(
            "sequences", "unlike each other from the start: several regions or strands?"
        )
    return none if tokens_FL is None else tokens_FL


def _column(
    inspection: Inspection, metadata: Metadata, name: str, ids: Sequence[str]
) -> MetadataColumn:
    values = metadata.values(name, ids).tolist()
    present = [value for value in values if value]
    counts, numbers_N = Counter(present), as_numbers(present)
    are_numbers = np.isfinite(numbers_N).all() and name not in metadata.categorical
    kind: ColumnKind
    if not present:
        kind, text = "empty", "empty"
    elif len(counts) == 1:
        kind, text = "one value", f"one value only, '{shortened(present[0])}'"
    elif are_numbers and len(counts) > FEW_VALUES:
        with np.errstate(over="ignore"):  # numbers near the largest float overflow
            low, middle, high = np.percentile(numbers_N, [0, 50, 100])
        kind, text = "numbers", f"numbers, {low:g} to {high:g}, median {middle:g}"
    elif len(counts) == len(present) > FEW_VALUES:
        kind, text = "names", "a name of each sample"
    else:
        frequencies = [f"{shortened(value)} ({times})" for value, times in counts.most_common(6)]
        frequencies += ["..."] if len(counts) > 6 else []
        kind, text = "categories", f"{len(counts)} values: {', '.join(frequencies)}"
    if kind in ("one value", "empty"):
        inspection.warn(name, text)
    else:
        missing = len(values) - len(present)
        text += f"; {missing} of {len(values)} missing" if missing else ""
        inspection.fact(name, text)
    if kind == "numbers":
        inspection.read(name, lambda: warn_of_codes(name, numbers_N))
    cases = Counter(value.lower() for value in counts)
    if variants := [value for value in counts if cases[value.lower()] > 1]:
        inspection.warn(name, f"values that differ in case alone: {first_few(variants)}")
    return MetadataColumn(name, kind, values, text)


def _range(values: Any) -> str:
    low, middle, high = np.percentile(values, [0, 50, 100])
    return f"{low:.0f} to {high:.0f}, median {middle:.0f}" if low < high else f"{low:.0f}"
