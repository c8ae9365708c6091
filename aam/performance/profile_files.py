"""Readers of profiler output: rocprof, rocprofv3, rocpd, nsys and Chrome traces of torch.profiler.

A format is recognized by its content. To add one, write a reader and add it to `CSV_FORMATS` or
`JSON_FORMATS`. Columns are read by name: their order differs between versions.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import itertools
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aam.contract.errors import DataError
from aam.contract.files import require
from aam.performance.profile import (
    Interval,
    KernelProfile,
    KernelTime,
    longest_first,
    profile_of_calls,
    profile_of_operations,
)

_OPERATIONS, _EVERY = 20, 1000
"""Operations of SQLite for each byte of a database, at most, and between two checks of that."""

Row = dict[str, str]
CsvReader = Callable[[list[Row]], KernelProfile]
JsonReader = Callable[[Any], KernelProfile]

MAX_BYTES = 2 << 30
"""Size of a file, unpacked, above which it is refused: traces of a whole training."""


_LONGEST_NS = 1e9 * 3600 * 24 * 10_000
"""Time above which a profile is damaged: ten thousand days."""


def read_profile(path: Path) -> KernelProfile:
    """Read the profile in `path`, which may be compressed with gzip.

    Raises:
        MissingInput: the file does not exist.
        DataError: unknown format, damaged, without kernels, or larger than `MAX_BYTES`.
    """
    with require(path, "profile").open("rb") as file:
        head = file.read(16)
    try:
        if head.startswith(b"SQLite format 3\0"):
            profile = _read_rocpd(path)
        else:
            profile = _read_text(_text(path, packed=head.startswith(b"\x1f\x8b")), path)
        _check(profile)
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, ArithmeticError,
            RecursionError, csv.Error, sqlite3.Error, zlib.error) as error:  # fmt: skip
        cause = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        if cause == "interrupted":
            cause = "it takes longer than a profile of its size"
        raise DataError(
            "The profile is damaged or incomplete",
            f"'{path}': {' '.join(cause.split())[:200]}",
            "a profiler writes its file when the program ends normally: run it again",
        ) from None
    if not profile.kernels:
        raise DataError(
            "The profile has no kernels",
            f"'{path}' ({profile.source})",
            "profile the kernels too (rocprofv3 --kernel-trace, torch.profiler with CUDA activity)",
        )
    return profile


def _check(profile: KernelProfile) -> None:
    """Refuse times that no profiler measures.

    Raises:
        ValueError: the first of them.
    """
    for kernel in profile.kernels:
        if not 0 <= kernel.total_ns <= _LONGEST_NS or not 0 < kernel.calls < 1 << 63:
            shown = f"{kernel.calls:.3g} calls of {kernel.name[:40]} in {kernel.total_ns:.3g} ns"
            raise ValueError(shown)
    if profile.kernels and not profile.total_ns:
        raise ValueError("all its times are 0")


def _text(path: Path, packed: bool) -> str:
    with gzip.open(path) if packed else path.open("rb") as file:
        # Bounded as it is unpacked: a small gzip file may hold any number of bytes.
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 30} GiB; profile fewer steps")
    return content.decode()


def _read_text(text: str, path: Path) -> KernelProfile:
    if text.lstrip()[:1] in ("{", "["):
        content = json.loads(text)
        if isinstance(content, list):  # a Chrome trace may be the list of its events
            content = {"traceEvents": content}
        for key, read_json in JSON_FORMATS.items():
            if key in content:
                return read_json(content)
    rows = _rows(text)
    columns = set(rows[0]) if rows else set(next(csv.reader(text.splitlines()[:1]), ()))
    for needed, read_csv in CSV_FORMATS:
        if needed <= columns:
            return read_csv(rows)
    raise DataError(
        "Not the output of a known profiler",
        f"'{path}'",
        "give kernel statistics or traces of rocprof, rocprofv3 (CSV, JSON, rocpd), nsys (CSV) or "
        "torch.profiler (Chrome trace)",
    )


def _rows(text: str) -> list[Row]:
    """Return the rows below the header; nsys prints other lines above it."""
    lines = text.splitlines()
    known = [columns for columns, _ in CSV_FORMATS]
    for first, line in enumerate(lines[:50]):
        columns = {name.strip() for name in next(csv.reader([line]), ())}
        if any(needed <= columns for needed in known):
            table = csv.DictReader(lines[first:], strict=True)
            return [{str(k).strip(): v for k, v in row.items()} for row in table]
    return []


def _plain(name: str) -> str:
    """Return a kernel's name without the suffixes of its descriptor."""
    return name.removesuffix(" [clone .kd]").removesuffix(".kd")


def _statistics(source: str, calls: str, total: str) -> CsvReader:
    """Make a reader of a table of totals with these columns."""

    def read(rows: list[Row]) -> KernelProfile:
        kernels = [
            KernelTime(_plain(row["Name"]), int(_number(row[calls])), _number(row[total]))
            for row in rows
        ]
        host = ("hip", "hsa", "cuda")
        if kernels and all(kernel.name.lstrip("_").startswith(host) for kernel in kernels):
            raise DataError(
                "Calls of the host's API instead of kernels",
                f"{kernels[0].name} and others",
                "give the file of kernel statistics (*kernel_stats.csv)",
            )
        return KernelProfile(source, longest_first(kernels))

    return read


def _number(text: str) -> float:
    """Parse a number, with thousands separators where the text form of nsys has them."""
    return float(text.replace(",", ""))


def _dispatches(source: str, name: str, start: str, end: str, prefix: str = "") -> CsvReader:
    """Make a reader of a table of single calls with these columns."""

    def read(rows: list[Row]) -> KernelProfile:
        calls = ((prefix + _plain(r[name]), int(r[start]), int(r[end])) for r in rows)
        return profile_of_calls(source, calls)

    return read


CSV_FORMATS: tuple[tuple[set[str], CsvReader], ...] = (
    ({"KernelName", "BeginNs", "EndNs"}, _dispatches("rocprof", "KernelName", "BeginNs", "EndNs")),
    (
        {"Kernel_Name", "Start_Timestamp", "End_Timestamp"},
        _dispatches("rocprofv3 kernel trace", "Kernel_Name", "Start_Timestamp", "End_Timestamp"),
    ),
    (
        {"Direction", "Start_Timestamp", "End_Timestamp"},
        _dispatches("rocprofv3 copy trace", "Direction", "Start_Timestamp", "End_Timestamp"),
    ),
    (
        {"Name", "Calls", "TotalDurationNs", "MinNs"},
        _statistics("rocprofv3 statistics", "Calls", "TotalDurationNs"),
    ),
    (
        {"Name", "Calls", "TotalDurationNs"},
        _statistics("rocprof statistics", "Calls", "TotalDurationNs"),
    ),
    (
        {"Name", "Instances", "Total Time (ns)"},
        _statistics("nsys statistics", "Instances", "Total Time (ns)"),
    ),
)
"""Columns that identify a table -> its reader; the first whose columns are all there."""


def _read_rocprofv3(content: Any) -> KernelProfile:
    return profile_of_calls("rocprofv3 JSON", _rocprofv3_calls(content))


def _rocprofv3_calls(content: Any) -> Iterator[tuple[str, float, float]]:
    for process in content["rocprofiler-sdk-tool"]:
        names = {
            symbol["kernel_id"]: _plain(symbol["formatted_kernel_name"])
            for symbol in process["kernel_symbols"]
        }
        records = process["buffer_records"]
        for call in records["kernel_dispatch"]:
            kernel = names[call["dispatch_info"]["kernel_id"]]
            yield kernel, call["start_timestamp"], call["end_timestamp"]
        for copy in records.get("memory_copy", ()):
            yield "memory copy", copy["start_timestamp"], copy["end_timestamp"]


def _read_chrome(content: Any) -> KernelProfile:
    """Read a Chrome trace, whose times are microseconds; without kernels, operations of the CPU."""
    source = "torch.profiler trace"
    on_gpu = [_interval(event) for event in _of(content, "kernel", "gpu_memcpy", "gpu_memset")]
    if on_gpu:
        return profile_of_calls(source, on_gpu)
    threads: dict[Any, list[Interval]] = {}
    for event in _of(content, "cpu_op"):
        threads.setdefault(event.get("tid"), []).append(_interval(event))
    return profile_of_operations(f"{source} of a CPU", threads.values())


def _of(content: Any, *categories: str) -> Iterator[Any]:
    """Yield the complete events of some categories."""
    for event in content["traceEvents"]:
        if event.get("cat") in categories and event.get("ph") == "X":
            yield event


def _interval(event: Any) -> Interval:
    start = float(event["ts"])
    return str(event["name"]), 1e3 * start, 1e3 * (start + float(event["dur"]))


JSON_FORMATS: dict[str, JsonReader] = {
    "rocprofiler-sdk-tool": _read_rocprofv3,
    "traceEvents": _read_chrome,
}
"""Key that identifies a document -> its reader."""


def _read_rocpd(path: Path) -> KernelProfile:
    """Read a rocpd database of rocprofv3; the names of its tables end with an id of the process."""
    address = f"file:{path.resolve().as_posix().replace('?', '%3f').replace('#', '%23')}"
    # Immutable: SQLite neither locks the file nor writes a journal beside it.
    uri = f"{address}?mode=ro&immutable=1"
    calls: list[tuple[str, float, float]] = []
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        _bound(database, path.stat().st_size)
        # Tables alone, since a view can compute without end; and of them those with the calls and
        # names of kernels and copies, since another one has the environment of the profiled
        # process, passwords included.
        found = database.execute("select name from sqlite_master where type = 'table'")
        tables = sorted(name for (name,) in found)
        for prefix, names, key, column in (
            ("rocpd_kernel_dispatch", "rocpd_info_kernel_symbol", "kernel_id", "display_name"),
            ("rocpd_memory_copy", "rocpd_string", "name_id", "string"),
        ):
            for table in tables:
                named = f"{names}{table.removeprefix(prefix)}"
                if table.startswith(prefix) and named in tables:
                    calls += database.execute(
                        f'select named."{column}", call."start", call."end" '
                        f"from {_quoted(table)} call join {_quoted(named)} named "
                        f'on named."id" = call."{key}"'
                    )
    return profile_of_calls("rocpd", ((_plain(n), s, e) for n, s, e in calls))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _bound(database: sqlite3.Connection, size: int) -> None:
    """Allow plain reading alone, and no more operations than a file of so many bytes needs."""
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    database.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY
    )
    left = itertools.count(1000 + size * _OPERATIONS // _EVERY, -1)
    database.set_progress_handler(lambda: int(next(left) < 0), _EVERY)
