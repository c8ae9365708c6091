"""Records: JSON and YAML files, read within bounds and decoded by type with msgspec.

Users edit and replace these files. A reader expects a type (a frozen dataclass, a `msgspec.Struct`,
`dict[str, float]`, ...) and either gets a value or raises an error with file, field and fault:

    class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
        max_time: str | None = None
        gpus: Count = 0

    site = read_json(path, Site, "site file")

Unknown keys are ignored, except in a Struct with `forbid_unknown_fields`: the message then suggests
the nearest key. Numbers are finite. `Annotated[T, Meta(ge=0)]` states a range.
"""

from __future__ import annotations

import functools
import operator
import re
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from aam.contract.dataclass import dataclass
from aam.contract.errors import (
    ConfigurationError,
    DataError,
    MissingInput,
    nearest,
    printable,
    reason_of,
)
from aam.contract.files import require

T = TypeVar("T")
V = TypeVar("V")

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
InsideOne = Annotated[float, Meta(gt=0, lt=1)]
NonNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]

_Plain = bool | int | float | str | None
PlainOptions = dict[str, _Plain | list[_Plain] | dict[str, _Plain | list[_Plain]]]
"""Options of a command as plain values, see `aam.contract.options.to_plain`."""

MAX_BYTES = 64 << 20  # most bytes of a document; the largest real ones have some hundred kilobytes
MAX_DEPTH, MAX_YAML_DEPTH = 32, 20
"""Most levels of nesting: PyYAML's C loader recurses without a limit and would crash."""

EDITED = "restore the file if it was edited, or create it again"

_WORDS = {"IntType": "a whole number", "FloatType": "a number", "StrType": "text",
          "BoolType": "true or false", "NoneType": "null",
          **dict.fromkeys(("ListType", "TupleType", "VarTupleType"), "a list"),
          **dict.fromkeys(("DictType", "StructType", "DataclassType", "TypedDictType"),
                          "a mapping")}  # fmt: skip
"""Names of msgspec's types in messages."""
_BOUNDS = {"ge": (">=", operator.ge), "gt": (">", operator.gt), "le": ("<=", operator.le),
           "lt": ("<", operator.lt)}  # fmt: skip


class RecordedFile(msgspec.Struct):
    """An input of a run."""

    path: str
    sha256: str
    bytes: Count = 0


class AssociationTests(msgspec.Struct):
    """Association tests of a run: numbers and settings."""

    samples: int
    permutations: int
    rate: float
    q_associated: int | None = None
    q_conditional: int | None = None


class RecordEntries(msgspec.Struct):
    """Entries of run.json, the record of a run; commands add others."""

    aam: str
    command: str
    options: dict[str, Any]
    argv: list[str] = []
    started: str = ""
    finished: str = ""
    seconds: float = 0
    host: dict[str, Any] = {}
    versions: dict[str, Any] = {}
    inputs: dict[str, RecordedFile] = {}
    samples: int | dict[str, Count] = 0
    asvs: int = 0
    rarefy_depth: int | None = None
    parameters: int = 0
    epochs: int | list[int] = 0
    members: list[str] = []
    warnings: list[str] = []
    lengths: list[Count] = []
    settings: dict[str, str] = {}
    tested: AssociationTests | None = None


class Mismatch(ValueError):
    """Value of another type than declared; only an unknown key has a remedy."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}, {remedy}" if remedy else message)
        self.message, self.remedy = message, remedy


def read_json(path: Path, expected: type[T], kind: str, remedy: str = EDITED) -> T:
    """Read a JSON file as a value of a type."""
    return decode_json(_content(path, kind), expected, kind, f"'{path}'", remedy)


def read_json_object(
    path: Path, expected: type[msgspec.Struct], kind: str, remedy: str = EDITED
) -> dict[str, Any]:
    """Read a JSON object with all of its entries; those in a Struct are checked."""
    content: dict[str, Any] = read_json(path, dict[str, Any], kind, remedy)
    try:
        convert(content, expected)
    except Mismatch as error:
        raise DataError(f"The {kind} is damaged", f"'{path}', {error}", remedy) from error
    return content


def decode_json(
    content: bytes | str, expected: type[T], kind: str, source: str, remedy: str = EDITED
) -> T:
    """Decode a JSON document as a value of a type; `source` names it in messages."""
    try:
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
        plain = msgspec.json.decode(content)
        _require_bounded(plain)
        return convert(plain, expected)
    except Mismatch as error:
        reason = str(error)
    except (ValueError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if deep else reason_of(error)
    raise DataError(f"The {kind} is damaged", f"{source}, {reason}", remedy)


def convert(value: Any, expected: type[T], field: str = "") -> T:
    """Convert plain dictionaries, lists, strings and numbers to a type."""
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError:
        raise _mismatch(value, expected, field) from None


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """Value with its source: a line of a file ("/etc/launch.yaml:3"), an option, a variable."""

    value: T
    source: str

    def decoded(self, expected: type[V], key: str) -> Sourced[V]:
        """Return the value as its type; numbers become text if text is expected."""
        value: Any = self.value
        # YAML reads an account 1234 or a limit of 30 minutes as numbers.
        is_text = str in (expected, getattr(expected, "__origin__", None))
        if is_text and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        try:
            return Sourced(convert(value, expected, key), self.source)
        except Mismatch as error:
            cause = "An unknown key" if error.remedy else "Invalid value"
            evidence = f"{error.message} in {self.source}"
            raise ConfigurationError(cause, evidence, error.remedy or "correct it") from None


def read_yaml_entries(
    path: Path, kind: str, keys: Iterable[str], remedy: str = ""
) -> dict[str, Sourced[Any]]:
    """Read the top-level mapping of a YAML file; `kind` names it in messages."""
    try:
        text = _content(path, kind).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        evidence = f"'{path}', {error}"
        raise ConfigurationError("Not a text file", evidence, "save it as UTF-8") from error
    return yaml_entries(text, str(path), keys, remedy)


def yaml_entries(
    text: str, name: str, keys: Iterable[str], remedy: str = ""
) -> dict[str, Sourced[Any]]:
    """Read the top-level mapping of a YAML document: each value with its line.

    An empty document is an empty mapping. 24:00:00 is text. The error about an unknown key has the
    `remedy`, or lists the `keys`.
    """
    import yaml  # 10 ms that programs without YAML do not spend

    depth, where = 0, name
    try:
        # PyYAML's C loader recurses without a limit, and nine levels of aliases in 357 bytes stand
        # for 400 million values.
        for event in yaml.parse(text, Loader=_loader()):
            where = f"{name}:{event.start_mark.line + 1}" if event.start_mark else name
            if isinstance(event, yaml.AliasEvent):
                evidence = f"*{event.anchor} in {where}"
                raise ConfigurationError("An alias in YAML", evidence, "write its value out")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_YAML_DEPTH:
                    evidence = f"{where}, more than {MAX_YAML_DEPTH} levels"
                    raise ConfigurationError("Lists nested too deeply", evidence, "correct it")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.ScalarEvent) and "\0" in event.value:
                raise ConfigurationError("A NUL character in a value", where, "remove it")
        loader = _loader()(text)
        loader.file = name
        try:
            root = loader.get_single_node()
            if root is None:
                return {}
            mapping = isinstance(root, yaml.MappingNode)
            content = loader.construct_document(root) if mapping else None
            if not isinstance(content, dict):  # the tag !!set makes a set of a mapping
                raise ConfigurationError("Not a mapping", f"{name}:1", "write `key: value` lines")
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigurationError("Broken YAML", f"{where}, {problem}", "correct it") from error
    except (ValueError, OverflowError) as error:  # a tag of the document, half a surrogate pair
        remedy = "correct it, or quote it to make it text"
        raise ConfigurationError("Not a value", f"{name}, {error}", remedy) from error
    lines = [node.start_mark.line + 1 for node, _ in root.value]
    keys, entries = tuple(keys), {}
    for (key, item), line in zip(content.items(), lines, strict=True):
        where = f"{name}:{line}"
        if key not in keys:
            evidence, fallback = f"'{key}' in {where}", remedy or f"known are {', '.join(keys)}"
            raise ConfigurationError("An unknown key", evidence, nearest(str(key), keys, fallback))
        entries[key] = Sourced(item, where)
    return entries


def _content(path: Path, kind: str) -> bytes:
    try:
        with require(path, kind).open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        evidence = f"'{path}', {error.strerror}"
        raise MissingInput(f"The {kind} cannot be read", evidence, "check permissions") from error


def _require_bounded(value: Any, depth: int = 0) -> None:
    """Refuse NUL characters, numbers above 63 bits and deep nesting."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a text holds a NUL character")
    elif isinstance(value, int):
        if value.bit_length() > 63:
            raise ValueError("a number has more than 63 bits")
    elif isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise ValueError(f"lists or mappings are nested in more than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            _require_bounded(list(value), depth)
            value = list(value.values())
        for item in value:
            _require_bounded(item, depth + 1)


def _mismatch(value: Any, expected: Any, location: str) -> Mismatch:
    """Return the error of a wrong value, with the name of its first wrong entry."""
    for key, item, kind in _entries(value, expected):
        try:
            msgspec.convert(item, kind)
        except msgspec.ValidationError:
            suffix = f"[{key}]" if isinstance(key, int) else f".{key}"
            return _mismatch(item, kind, location + suffix)
    # All entries are right: the value itself is wrong.
    name, kinds = location.removeprefix(".") or "the content", _kinds(expected)
    fields = {field.encode_name: field for kind in kinds for field in getattr(kind, "fields", ())}
    if isinstance(value, dict) and fields:
        for key in fields:
            if fields[key].required and key not in value:
                return Mismatch(f"{name} has no '{key}'")
        if unknown := [str(key) for key in value if key not in fields]:
            remedy = nearest(unknown[0], fields, f"known are {', '.join(fields)}")
            where = f" in '{name}'" if location else ""
            return Mismatch(f"unknown key '{printable(unknown[0])}'{where}", remedy)
    if isinstance(value, dict | list):
        printed = "a list" if isinstance(value, list) else "a mapping"
    else:
        printed = printable(repr(value), 60)
    if choices := [str(choice) for kind in kinds for choice in getattr(kind, "values", ())]:
        return Mismatch(f"{name} is {printed}, not one of {', '.join(choices)}")
    unmet = [text for kind in kinds if (text := _unmet(value, kind))]
    expectations = unmet or dict.fromkeys(map(_word, kinds))
    return Mismatch(f"{name} is {printed}, expected {' or '.join(expectations)}")


def _entries(value: Any, expected: Any) -> list[tuple[Any, Any, Any]]:
    from msgspec import inspect

    origin, kinds = typing.get_origin(expected), typing.get_args(expected)
    if origin in (Annotated, typing.Union, types.UnionType):
        subtypes = kinds[:1] if origin is Annotated else kinds
        return [entry for subtype in subtypes for entry in _entries(value, subtype)]
    if isinstance(value, list) and origin in (list, tuple, Sequence):
        item_types = kinds if origin is tuple and Ellipsis not in kinds else kinds[:1] * len(value)
        return list(zip(range(len(value)), value, item_types, strict=False))
    if isinstance(value, dict) and origin is dict:
        return [(key, item, kinds[1]) for key, item in value.items()]
    if isinstance(value, dict) and (fields := getattr(inspect.type_info(expected), "fields", ())):
        hints = typing.get_type_hints(expected, include_extras=True)
        names = {field.encode_name: hints[field.name] for field in fields}
        return [(key, item, names[key]) for key, item in value.items() if key in names]
    return []


def _kinds(expected: Any) -> list[Any]:
    """Return msgspec's descriptions of a type, or of each type of a union."""
    from msgspec import inspect

    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        return [kind for subtype in typing.get_args(expected) for kind in _kinds(subtype)]
    kind: Any = inspect.type_info(expected)
    kind = getattr(kind, "type", kind)  # without its description
    return list(getattr(kind, "types", (kind,)))


def _word(kind: Any) -> str:
    name = type(kind).__name__
    return _WORDS.get(name, kind.cls.__name__ if hasattr(kind, "cls") else name)


def _unmet(value: Any, kind: Any) -> str:
    """Return the constraint that a value violates; "" without one."""
    of_type: dict[str, Any] = {"IntType": int, "FloatType": (int, float), "StrType": str,
                               "ListType": list}  # fmt: skip
    if isinstance(value, bool) or not isinstance(value, of_type.get(type(kind).__name__, ())):
        return ""
    for bound, (sign, holds) in _BOUNDS.items():
        if (limit := getattr(kind, bound, None)) is not None and not holds(value, limit):
            return f"{_word(kind)} {sign} {limit}"
    if (least := getattr(kind, "min_length", None)) is not None and len(value) < least:
        return f"{_word(kind)} of length >= {least}"
    if (most := getattr(kind, "max_length", None)) is not None and len(value) > most:
        return f"{_word(kind)} of length <= {most}"
    pattern = getattr(kind, "pattern", None)
    return f"{_word(kind)} matching regex {pattern!r}" if pattern else ""


@functools.cache
def _loader() -> Any:
    """Return PyYAML's safe loader without numbers to base 60 and duplicate keys."""
    import yaml  # 10 ms that programs without YAML do not spend

    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    base_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?\Z")
    resolvers = {
        first: [("tag:yaml.org,2002:str", base_60), *later]
        for first, later in safe.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> Any:
        entries: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            where = f"{self.file}:{key_node.start_mark.line + 1}"
            try:
                key = self.construct_object(key_node, deep=True)
                if isinstance(key, dict | list):
                    raise yaml.constructor.ConstructorError(
                        None, None, "a key that is no text", key_node.start_mark
                    )
                if key in entries:
                    remedy = "keep one of them"
                    raise ConfigurationError("Duplicate key", f"'{key}' in {where}", remedy)
                entries[key] = self.construct_object(value_node, deep=True)
            except (ValueError, OverflowError) as error:  # month 13, a number of 5000 digits
                remedy = "correct it, or quote it to make it text"
                raise ConfigurationError("Not a value", f"{where}, {error}", remedy) from error
        return entries

    members = {"yaml_implicit_resolvers": resolvers, "construct_mapping": construct_mapping}
    return type("Loader", (safe,), members)
