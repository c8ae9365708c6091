"""Feature-table formats: BIOM 2.1 (HDF5), BIOM 1 (JSON) and TSV, read as blocks of samples.

The format is recognized by the first bytes of the file, not by its name. A complete table is one
block (`aam.data.table`); `aam prepare` reads BIOM 2.1 in blocks that fit in memory, because the
format stores its matrix by sample. To add a format, write a function from `OpenTable` to
`TableBlocks` and add its entry to `TABLE_FORMATS`.

biom-format reads the same files, but a damaged file (repeated entries, an index beyond the table, a
shape that contradicts the data) ends in a traceback or a silent sum, and reading takes several
times as long. It is the reference in tests.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from aam.console import info
from aam.contract.errors import DataError, first_few, reason_of, repeated, shortened
from aam.data.formats import artifact
from aam.data.formats.text import check_text, decoded, floats, number_remedy
from aam.memory import check_memory, memory_budget

BLOCK_BYTES = 64 << 20  # largest size of a block of two or more samples

TRANSPOSED = "give features as rows and samples as columns, or BIOM (it names its axes)"

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_ENTRY_BYTES = 12
"""Bytes of an entry of a block: a float64 value and the int32 index of its feature."""
_JSON_BYTES = 12  # bytes of memory that a byte of JSON takes, measured on tables of small counts
_CELL_BYTES = 70
"""Bytes of memory that the cell of a line takes, as a string of Python and as a number."""
_NAME_BYTES = 100
_IDS_AT_ONCE = 1024
MAX_READS = int(np.iinfo(np.int32).max)

Quantity = Literal["reads", "relative abundances", "presences"]
"""Quantity of a table's values; all are stored as integers."""

PARTS = 10**9  # sum of a sample's relative abundances, stored as integers

_QUANTITIES: dict[str, Quantity] = {
    "": "reads",  # not an artifact
    "FeatureTable[Frequency]": "reads",
    "FeatureTable[RelativeFrequency]": "relative abundances",
    "FeatureTable[PresenceAbsence]": "presences",
}
"""Semantic type in QIIME 2 -> quantity."""

_SUMS = 0.01
"""Relative difference of the samples' sums up to which fractions are relative abundances."""

_ASV = re.compile(r"[ACGTUN]{20,}|[0-9a-f]{32}|[0-9a-f]{40}", re.IGNORECASE)
"""An id that is DNA, or the MD5 or SHA-1 of a sequence."""
_TAXONOMY = frozenset({"taxonomy", "taxon", "consensus lineage", "consensuslineage"})
_SAMPLE_HEADERS = frozenset(
    {"#sampleid", "#sample id", "sampleid", "sample-id", "sample_name", "sample", "samples"}
)

_TOTALS = frozenset({"total", "totals", "sum", "row sum", "rowsum", "grand total", "all"})
"""Names of a column of row sums, as spreadsheets add it."""

_TRAILING = "remove the tabs at the ends of the lines"
_NO_READS = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})


@dataclass(frozen=True)
class TableBlocks:
    """A table that is read block by block; `blocks` may be called more than once."""

    sample_ids: Sequence[str]  # N names
    feature_ids: Sequence[str]  # F names
    # yields blocks [n, F] of all samples in order: float64 values of the file, each feature at most
    # once per sample
    blocks: Callable[[], Iterator[csr_array]]
    quantity: Quantity = "reads"  # by the type of an artifact; "reads" for other files


@dataclass(frozen=True)
class OpenTable:
    """Open, unpacked table file with memory limits in bytes for a block and for the table."""

    path: Path
    stream: io.BufferedReader
    block_bytes: int
    budget: int

    def check_size(self, size: float, content: str) -> None:
        """Refuse content of the table that does not fit in memory (DataError)."""
        remedy = "check how it was made, raise --max-memory-gb, or use `aam prepare`"
        check_memory("table", content, size, self.budget, remedy)


def open_blocks(
    path: Path, block_bytes: int = BLOCK_BYTES, max_bytes: int | None = None
) -> TableBlocks:
    """Open a feature table to read its values block by block."""
    budget = max_bytes or memory_budget()
    with (
        path_named(path),
        artifact.open_payload(path, "feature-table.biom", "FeatureTable", budget) as stream,
    ):
        start = stream.peek(4096)[:4096]
        if not start.strip():
            raise DataError("No feature table", "the file is empty", "make it again")
        readers = (read for recognizes, read in TABLE_FORMATS.values() if recognizes(start))
        table = next(readers)(OpenTable(path, stream, block_bytes, budget))
        check_names(table.sample_ids, table.feature_ids)
        artifact_type = artifact.type_of(path).partition(" %")[0]  # without properties
        if artifact_type not in _QUANTITIES:
            raise DataError(
                "The table is neither reads nor abundances",
                f"'{path}' is {artifact_type}",
                "give the FeatureTable[Frequency] that it was made from",
            )
    return replace(table, quantity=_QUANTITIES[artifact_type])


def open_counts(path: Path, block_bytes: int, max_bytes: int | None = None) -> TableBlocks:
    """Open a feature table to read validated counts of reads block by block."""
    opened = open_blocks(path, block_bytes, max_bytes)
    require_reads(opened.quantity, f"'{path}'")

    def blocks() -> Iterator[csr_array]:
        first = 0

        def as_counts(block: csr_array) -> csr_array:
            nonlocal first
            first += block.shape[0]
            return as_counts_of_reads(block, opened.sample_ids[first - block.shape[0] : first])

        with path_named(path):
            # Unlike a loop, map holds no reference to a block after its user has dropped it.
            yield from map(as_counts, opened.blocks())

    return replace(opened, blocks=blocks)


def require_reads(quantity: Quantity, source: str) -> None:
    """Raise DataError if the values of a table are not reads."""
    if quantity != "reads":
        raise DataError(
            f"The table has {quantity}, not reads",
            f"{source}; a transformer, `aam pretrain` and `aam prepare` need reads",
            "give the table of reads, or train kernel and forest (--members kernel forest)",
        )


@contextmanager
def path_named(path: Path) -> Iterator[None]:
    """Add the path of the table to errors that do not name it."""
    try:
        yield
    except DataError as error:
        if f"'{path}'" in str(error):
            raise
        raise DataError(f"{error.cause} in '{path}'", error.evidence, error.remedy) from error


def check_ids(ids: Sequence[str], item: str) -> None:
    """Refuse duplicated and empty ids of samples or features."""
    if twice := repeated(ids):
        raise DataError(f"Duplicated {item} ids", first_few(twice), f"give each {item} one id")
    if unnamed := sum(not name.strip() for name in ids):
        items = f"{item}s".replace("ys", "ies").capitalize()
        raise DataError(f"{items} without an id", str(unnamed), "name them")
    try:
        "\n".join(ids).encode()
    except UnicodeEncodeError as error:
        evidence = f"it has half a character, {error.object[error.start : error.end]!a}"
        raise DataError(f"A {item} id is no text", evidence, "write the ids anew") from error


def check_names(samples: Sequence[str], features: Sequence[str]) -> None:
    """Refuse duplicated and missing ids, and a table whose sample ids are ASVs (DataError)."""
    check_ids(samples, "sample")
    check_ids(features, "feature")
    if samples and all(map(_ASV.fullmatch, samples)) and not any(map(_ASV.fullmatch, features)):
        evidence = f"samples {first_few(samples)} and features {first_few(features)}"
        raise DataError("The table is transposed: its samples are ASVs", evidence, TRANSPOSED)


def as_abundances(
    block: csr_array, sample_ids: Sequence[str], quantity: Quantity
) -> tuple[csr_array, Quantity]:
    """Convert the values [n, F] of a table in place to sorted int32 above 0; also their quantity.

    Relative abundances of a sample are scaled to the sum `PARTS`. Fractions count as relative
    abundances if no sample has a sum above 1, or if all sums are equal (percentages).
    """
    values = block.data
    if not (np.isfinite(values).all() and (values >= 0).all()):
        return as_counts_of_reads(block, sample_ids), quantity  # raises
    sums_N = np.asarray(block.sum(axis=1)).ravel()
    least, most = sums_N[sums_N > 0].min(initial=np.inf), sums_N.max(initial=0)
    closed = most <= 1 + _SUMS or (len(sums_N) > 1 and most <= (1 + _SUMS) * least)
    if quantity == "reads" and closed and not np.array_equal(np.trunc(values), values):
        quantity = "relative abundances"
    if quantity != "relative abundances":
        return as_counts_of_reads(block, sample_ids), quantity
    scales_N = np.divide(PARTS, sums_N, out=np.zeros(len(sums_N)), where=sums_N > 0)
    block.data = np.rint(values * np.repeat(scales_N, np.diff(block.indptr)))
    return as_counts_of_reads(block, sample_ids), quantity


def as_counts_of_reads(block: csr_array, sample_ids: Sequence[str]) -> csr_array:
    """Convert values [n, F] in place to sorted int32 counts above 0."""
    values = block.data
    with np.errstate(invalid="ignore"):
        block.data = values.astype(np.int32)
    if values.size and not (block.data.min() >= 0 and np.array_equal(block.data, values)):
        finite = np.isfinite(values)
        integral = np.trunc(values) == values
        checks = (
            (~finite, "Counts that are NaN or infinite", "write 0 if a sample has no reads"),
            (values < 0, "Negative counts", "give counts of reads, not transformed values"),
            (~integral, "Fractional counts", "give reads, or relative abundances of equal sums"),
            (values > MAX_READS, f"Counts beyond {MAX_READS}", "check how the table was made"),
        )
        wrong, cause, remedy = next(check for check in checks if check[0].any())
        rows = np.unique(np.searchsorted(block.indptr, np.flatnonzero(wrong), "right") - 1)
        samples = first_few(sample_ids[row] for row in rows)
        evidence = f"{int(wrong.sum())} of {np.count_nonzero(values)} values, in samples {samples}"
        raise DataError(cause, evidence, remedy)
    block.eliminate_zeros()
    block.sort_indices()
    return block


def read_hdf5(table: OpenTable) -> TableBlocks:
    """Read BIOM 2.1 by sample: a block is a slice of the file's arrays."""
    import h5py

    # HDF5 seeks, so a compressed table is unpacked into memory.
    packed = artifact.is_compressed(table.path)
    source = io.BytesIO(table.stream.read()) if packed else table.path

    def vector(file: Any, name: str, kinds: str) -> Any:
        """Return a vector of the file with one of numpy's type `kinds`."""
        item = file[name]
        if not isinstance(item, h5py.Dataset) or item.ndim != 1 or item.dtype.kind not in kinds:
            raise ValueError(f"'{name}' is not a vector of {'numbers' if 'i' in kinds else 'text'}")
        # HDF5 follows links: a foreign table could name any file that its reader may open.
        if item.external or item.is_virtual or item.file != file:
            raise ValueError(f"'{name}' is in another file")
        # HDF5 unpacks a complete chunk to read any part of it.
        chunk = item.chunks[0] if item.chunks else 0
        table.check_size(chunk * item.dtype.itemsize, f"a chunk of '{name}'")
        return item

    def ids(name: str) -> list[str]:
        dataset, names = vector(file, name, "OS"), list[str]()
        size = 64 * len(dataset)  # each id is a Python object
        for start in range(0, len(dataset), _IDS_AT_ONCE):
            table.check_size(size, "the list of ids")
            names += dataset.asstr()[start : start + _IDS_AT_ONCE].tolist()
            size += sum(map(len, names[start:]))
        return names

    try:
        with h5py.File(source, "r") as file:
            samples, features = ids("sample/ids"), ids("observation/ids")
            ends = vector(file, "sample/matrix/indptr", "iu")
            stored = {
                len(vector(file, "sample/matrix/indices", "iu")),
                len(vector(file, "sample/matrix/data", "iuf")),
            }
            # Compared before reading: the header of a damaged file may describe any size.
            is_complete = len(ends) == len(samples) + 1
            if not is_complete or stored != {int((indptr := ends[:].astype(np.int64))[-1])}:
                raise ValueError("the matrix and the ids have different sizes")
        if indptr[0] != 0 or (np.diff(indptr) < 0).any():
            raise ValueError("samples overlap in the matrix")
    except artifact.DAMAGE as error:
        raise _unreadable("BIOM 2.1 (HDF5)", error) from error
    entries = max(1, table.block_bytes // _ENTRY_BYTES)
    largest = max(int(np.diff(indptr).max(initial=0)), min(int(indptr[-1]), 2 * entries))
    table.check_size(2 * _ENTRY_BYTES * largest, "its counts")

    def blocks() -> Iterator[csr_array]:
        low, last = 0, len(samples)
        try:
            with h5py.File(source, "r") as file:
                data, indices = file["sample/matrix/data"], file["sample/matrix/indices"]
                while low < last:
                    # As many samples as fit in a block; a larger sample is a block of its own.
                    high = int(np.searchsorted(indptr, indptr[low] + entries, side="right")) - 1
                    high = min(max(high, low + 1), last)
                    entry = slice(int(indptr[low]), int(indptr[high]))
                    # No reference to the block stays here: its user decides how long it lives.
                    yield _checked(
                        data[entry].astype(np.float64, copy=False),
                        indices[entry],
                        indptr[low : high + 1] - indptr[low],
                        len(features),
                    )
                    low = high
        except artifact.DAMAGE as error:
            raise _unreadable("BIOM 2.1 (HDF5)", error) from error

    return TableBlocks(samples, features, blocks)


def _checked(
    data: NDArray[np.float64], indices: NDArray[Any], indptr: NDArray[np.int64], features: int
) -> csr_array:
    """Return a matrix [n, features]; ValueError for indices out of range or in a sample twice."""
    block = csr_array((data, indices, indptr), shape=(len(indptr) - 1, features))
    block.check_format(full_check=True)
    if not block.has_canonical_format:  # not ascending, or twice
        once = block.copy()
        once.sum_duplicates()
        if once.nnz < block.nnz:
            raise ValueError("a sample has two values for one feature")
    return block


def read_json(table: OpenTable) -> TableBlocks:
    """Read BIOM 1: a JSON value whose matrix is rows or (feature, sample, value) triples."""
    # One byte beyond the limit, so that a larger file is refused, not truncated.
    data = table.stream.read(table.budget // _JSON_BYTES + 1)
    table.check_size(len(data) * _JSON_BYTES, "the JSON text")
    text = decoded(data, table.path, "feature table")
    try:
        content = json.loads(text)
        samples = [str(column["id"]) for column in content["columns"]]
        features = [str(row["id"]) for row in content["rows"]]
        shape = [len(features), len(samples)]
        if content.get("shape", shape) != shape:
            size = f"{len(features)} rows and {len(samples)} columns"
            raise ValueError(f"its shape is {content['shape']}, but it has {size}")
        matrix = np.array(content["data"], dtype=np.float64)
        if content.get("matrix_type", "sparse") == "sparse":
            triples = matrix.reshape(-1, 3)
            with np.errstate(invalid="ignore"):
                rows, columns = triples[:, :2].T.astype(np.int64)
            if not np.array_equal(triples[:, :2].T, [rows, columns]):
                raise ValueError("an index is not a whole number")
            values = coo_array((triples[:, 2], (columns, rows)), shape=shape[::-1]).tocsr()
            if values.nnz < len(triples):
                raise ValueError("a sample has two values for one feature")
        elif (matrix := matrix.reshape(-1, len(samples))).shape != tuple(shape):
            raise ValueError(f"{len(matrix)} rows of values, but {len(features)} of ids")
        else:
            values = csr_array(matrix.T)
    except artifact.DAMAGE as error:
        raise _unreadable("BIOM 1 (JSON)", error) from error
    return TableBlocks(samples, features, lambda: iter([values.copy()]))


def read_tsv(table: OpenTable) -> TableBlocks:
    """Read a TSV of features x samples, line by line."""
    check_text(table.stream.peek(4)[:4], table.path, "feature table")
    lines = _lines(table)
    header, first = _header(lines)
    quoted = all(len(name) > 1 and name[0] == name[-1] == '"' for name in header[1:])
    samples = [_unquoted(name) for name in header[1:]] if quoted else header[1:]
    columns: list[int] | None = None  # cells with counts; all without a column of taxa
    names = [name.strip().lower() for name in samples]
    if not _TAXONOMY.isdisjoint(names):
        left_out = [k for k, name in enumerate(names) if name in _TAXONOMY | {"confidence"}]
        titles = "', '".join(samples[k].strip() for k in left_out)
        plural, verb = ("s", "are") if len(left_out) > 1 else ("", "is")
        info(f"The column{plural} '{titles}' of the table {verb} not read.")
        columns = [k for k in range(len(samples)) if k not in left_out]
        samples = [samples[k] for k in columns]
    features: list[str] = []
    columns_U, values = [np.zeros(0, np.int32)], [np.zeros(0)]
    size = 0
    for number, line in chain(first, lines):
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(
                "A row of another length",
                f"line {number} has {len(cells)} cells, the header {len(header)}",
                _TRAILING
                if "" in (header[-1], cells[-1])
                else "is the file cut off, or are blanks used for tabs?",
            )
        counts = cells[1:] if columns is None else [cells[1 + k] for k in columns]
        try:
            row = floats(counts)
        except ValueError:
            names = samples if columns is None else [header[1 + k] for k in columns]
            raise _text_in_table(number, cells[0], names, counts) from None
        # Nonzero entries only: a dense table of a large study does not fit in memory.
        columns_U.append(np.flatnonzero(row).astype(np.int32))
        values.append(row[columns_U[-1]])
        features.append(_unquoted(cells[0]) if quoted else cells[0])
        size += len(cells[0]) + _NAME_BYTES + 3 * _ENTRY_BYTES * len(columns_U[-1])
        table.check_size(size, "the content of the file")
    # The lists begin with an empty array, so the index pointer begins with 0.
    indptr = np.cumsum([len(entries) for entries in columns_U])
    arrays = np.concatenate(values), np.concatenate(columns_U), indptr
    by_sample = csr_array(arrays, shape=(len(features), len(samples))).T.tocsr()
    all_samples = by_sample.sum(axis=0)
    totals = [
        row
        for row, name in enumerate(samples)
        if name.strip().lower() in _TOTALS
        and np.array_equal(2 * by_sample[[row]].toarray()[0], all_samples)
    ]
    if totals:
        info(f"The column '{samples[totals[0]]}' is the sum of the others, and not read.")
        rows = [row for row in range(len(samples)) if row not in totals]
        by_sample, samples = by_sample[rows], [samples[row] for row in rows]
    return TableBlocks(samples, features, lambda: iter([by_sample.copy()]))


def _lines(table: OpenTable) -> Iterator[tuple[int, str]]:
    """Yield number and text of the nonblank lines; they end with LF, CR LF or CR."""
    text = io.TextIOWrapper(table.stream, encoding="utf-8-sig")
    number = 0
    try:
        while line := text.readline(table.budget // _CELL_BYTES + 1):
            number += 1
            table.check_size(len(line) * _CELL_BYTES, f"line {number}")
            if line.strip():
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            "No feature table",
            "the file is neither HDF5 nor UTF-8 text",
            "give BIOM, TSV (UTF-8) or a .qza artifact",
        ) from error


def _header(lines: Iterator[tuple[int, str]]) -> tuple[list[str], list[tuple[int, str]]]:
    """Read the cells of the header; also return the lines that were read after it."""
    first, comment = "", ""
    plain: list[tuple[int, str]] = []
    for number, line in lines:
        first = first or line
        if not line.startswith("#"):
            plain = [(number, line)]
            break
        comment = line
    # The header is the last commented line if it has columns, else the first line without '#'.
    is_commented = "\t" in comment
    header = (comment if is_commented else plain[0][1] if plain else "").split("\t")
    if len(header) < 2 and first.count(",") > 1:
        remedy = "save it as tab-separated text (.tsv)"
        raise DataError("The table is comma-separated", f"line 1 is '{first[:60]}'", remedy)
    if len(header) < 2:
        raise DataError(
            "No feature table",
            f"line 1 is '{first[:60]}'",
            "give BIOM, a .qza artifact, or TSV with a row of sample ids and a column of features",
        )
    if [name.strip().lower() for name in header[:3]] == ["label", "group", "numotus"]:
        evidence = f"the first columns are {', '.join(header[:3])}"
        raise DataError("A shared file of mothur", evidence, "convert it with mothur's make.biom")
    if header[0].strip().lower() in _SAMPLE_HEADERS:
        remedy = f"{TRANSPOSED} (is it the metadata?)"
        raise DataError("The rows are samples", f"the first column is '{header[0]}'", remedy)
    if is_commented:
        return header, plain
    # R's write.table writes no header for the column of row names.
    following = list(islice(lines, 1))
    if following and following[0][1].count("\t") == len(header):
        header = ["", *header]
    return header, following


def _text_in_table(
    line: int, feature: str, samples: Sequence[str], cells: Sequence[str]
) -> DataError:
    wrong = [k for k, cell in enumerate(cells) if not _is_number(cell)]
    name, cell = samples[wrong[0]], cells[wrong[0]].strip()
    if not cell and wrong[-1] == len(cells) - 1:
        remedy = _TRAILING
    elif cell.lower() in _NO_READS:
        remedy = "write 0 if a sample has no reads"
    elif wrong[0] == 0 and feature.isdigit():
        remedy = "remove the first column (row numbers): the ASVs must be in the first column"
    else:
        otherwise = (
            f"remove the column '{shortened(name)}' if it is no sample (row numbers, taxa); the "
            "first column has the ASVs, every other column the counts of a sample"
        )
        remedy = number_remedy([cell], otherwise)
    evidence = f"line {line}, column '{shortened(name)}' is '{shortened(cell)}'"
    return DataError("A count that is not a number", evidence, remedy)


def _is_number(cell: str) -> bool:
    try:
        floats([cell])
    except ValueError:
        return False
    return True


def _unquoted(name: str) -> str:
    """Return an id without the quotes of R's write.table."""
    is_quoted = len(name) > 1 and name[0] == name[-1] == '"'
    return name[1:-1].replace('\\"', '"').replace('""', '"') if is_quoted else name


def _unreadable(form: str, error: Exception) -> DataError:
    remedy = "copy the file again or make it again"
    return DataError(f"Invalid or incomplete {form} table", reason_of(error), remedy)


TABLE_FORMATS: dict[
    str, tuple[Callable[[bytes], bool], Callable[[OpenTable], TableBlocks]]
] = {
    "BIOM 2.1": (lambda start: start.startswith(_HDF5_MAGIC), read_hdf5),
    "BIOM 1": (
        lambda start: start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"), read_json
    ),
    "TSV": (lambda start: True, read_tsv),
}  # fmt: skip
"""Registry of formats: a test of the first bytes (at most 4,096), and a reader. The reader raises
DataError if the content is damaged or exceeds the memory budget. The first match reads the file."""
