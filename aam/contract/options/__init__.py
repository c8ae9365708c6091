"""Options of every command, declared once as fields of dataclasses, and functions over them.

An option is a field, made with `option`, of a frozen `aam.contract.dataclass`. Command lines, help
pages, completion, checkpoints and run records of both programs read this field. Modules that
declare options evaluate annotations (no `from __future__ import annotations`): fields have types.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import numbers
import os
import sys
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from aam.contract.dataclass import dataclass

Role = Literal["value", "input", "output"]

SYNONYMS = {"gpu": "cuda"}  # synonyms of choices: PyTorch calls the GPUs of every vendor cuda
T = TypeVar("T")

Conditions = tuple[str, ...] | Mapping[str, str]
"""Conditions on other options of a command, for all values of the option or for each value.

`--tree` holds if the option differs from its default, `--loss-type quantile` if this value is among
its values, `A or B` if one of the two holds.
"""

EVERY_MEMBER = "every member"
"""`only_for` of an option that all members read, in a group of options of one member."""


@dataclass(frozen=True)
class Range:
    """Range of a numeric option, with a description for messages."""

    description: str
    lowest: float
    highest: float = sys.float_info.max
    open_below: bool = False
    open_above: bool = False

    def holds(self, number: float) -> bool:
        """Return whether a number is in the range; NaN and infinity never are."""
        above = number > self.lowest if self.open_below else number >= self.lowest
        return above and (number < self.highest if self.open_above else number <= self.highest)


ONE_OR_MORE = Range("1 or more", 1)
ZERO_OR_MORE = Range("0 or more", 0)
BELOW_ONE = Range("0 to below 1", 0, 1, open_above=True)
WEIGHTS = Range("0 to 1000000", 0, 1e6)
GIBIBYTES = Range("more than 0, at most 1048576", 0, 2**20, open_below=True)


def option(help: str, *, default: Any = None, **declaration: Any) -> Any:
    """Declare an option as a field of a frozen dataclass.

    Args:
        help: text for the help page; {choices} is replaced by the help of a registry's entries.
        default: its default value.
        declaration: attributes of `OptionSpec`, from `role` on.
    """
    metadata = {"help": help, **declaration}
    return dataclasses.field(default=default, metadata=metadata, kw_only=True)


required_option = functools.partial(option, default=dataclasses.MISSING)
"""Declare a required option."""

basic_option = functools.partial(option, basic=True)  # declare an option that `--help` shows

resumable_option = functools.partial(option, resumable=True)
"""Declare an option that a resumed run may change."""


def group(*, only_for: str) -> Any:
    """Declare a group of options that only one member reads, except options of `EVERY_MEMBER`."""
    return dataclasses.field(metadata={"only_for": only_for}, kw_only=True)


@dataclass(frozen=True)
class OptionSpec:
    """Option of a command."""

    flag: str  # its flag, such as `--output-dir`
    field: str  # its field in the options class
    type: Any  # annotation of the field
    help: str  # text for the help page
    required: bool = False  # it has no default
    default: Any = None
    group: str = ""  # first line of its group's docstring, the heading in help pages
    role: Role = "value"  # `output` for a path that is written, `input` for other paths
    basic: bool = False  # `--help` shows it, as it does required options
    takes: Range | None = None  # range of its numbers
    metavar: str = ""  # name of its value in help pages; default: by type
    implied: str | None = None  # value of the flag without a value
    first: bool = False  # the flag can be omitted: the value is the first argument
    repeated: bool = False  # the flag is repeated for each item of a tuple
    # a resumed run may change it; files of an `input` may move but must have the same content
    resumable: bool = False
    needs: Conditions = ()  # required conditions; otherwise the command line is refused
    excludes: Conditions = ()  # conditions that the option contradicts
    only_with: Conditions = ()  # conditions without which it has no effect, a warning
    only_for: str = ""  # only member of `aam train` that reads it; see `group`

    @property
    def choices(self) -> list[Any]:
        """Literal values of its type, such as "auto"."""
        return [choice for choice in alternatives(self.type) if not isinstance(choice, type)]


def alternatives(annotation: Any) -> list[Any]:
    """List the types and literal values of an option type.

    `Annotated[str, REGISTRY]` allows the names of a registry, a dictionary by name.

    >>> alternatives(Literal["auto"] | Path | None)
    ['auto', <class 'pathlib.Path'>, <class 'NoneType'>]
    >>> alternatives(tuple[Annotated[str, {"kernel": 1}], ...])
    ['kernel']
    """
    if typing.get_origin(annotation) is Annotated:
        return [*typing.get_args(annotation)[1]]
    arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
    if typing.get_origin(annotation) is Literal:
        return arguments
    return [kind for argument in arguments for kind in alternatives(argument)] or [annotation]


def specs(command: type, only_for: str = "") -> tuple[OptionSpec, ...]:
    """List the options of a command class and of its groups in declared order.

    `without` of a subclass names inherited fields that it omits. `only_for` is the only member that
    reads the class.
    """
    declared: list[OptionSpec] = []
    for field in dataclasses.fields(command):
        if dataclasses.is_dataclass(field.type):
            declared += specs(typing.cast(type, field.type), field.metadata.get("only_for", ""))
            continue
        required, text = field.default is dataclasses.MISSING, field.metadata["help"]
        role = "input" if Path in alternatives(field.type) else "value"
        # The meaning of each name of a registry.
        for annotation in typing.get_args(field.type):
            if typing.get_origin(annotation) is Annotated:
                entries = typing.get_args(annotation)[1].items()
                meanings = "; ".join(f"{name}: {entry.help}" for name, entry in entries)
                text = text.replace("{choices}", meanings)
        declared.append(
            OptionSpec(
                flag=flag_of(field.name),
                field=field.name,
                type=field.type,
                required=required,
                default=None if required else field.default,
                group=summary(command),
                **{"role": role, "only_for": only_for, **field.metadata, "help": text},
            )
        )
    without = getattr(command, "without", ())
    return tuple(spec for spec in declared if spec.field not in without)


def values_of(options: Any) -> dict[str, Any]:
    """Return the values of the options of a command and of its groups, by flag."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        is_group = dataclasses.is_dataclass(value)
        values |= values_of(value) if is_group else {flag_of(field.name): value}
    return values


def summary(command: type) -> str:
    """Return the first line of the docstring of an options class."""
    return (command.__doc__ or "").partition("\n")[0]


def flag_of(field: str) -> str:
    """Return the flag of an option by the name of its field; `from_` gives --from."""
    return "--" + field.rstrip("_").replace("_", "-")


def numbered(flag: str, values: Iterable[T]) -> dict[str, T]:
    """Return the values of a repeated option by `--table`, `--table 2`, `--table 3`, ..."""
    return {flag if n == 1 else f"{flag} {n}": value for n, value in enumerate(values, 1)}


def build(command: type[T], by_flag: Mapping[str, Any]) -> T:
    """Make the options of a command from flag -> value; absent options get defaults."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, command)):
        if dataclasses.is_dataclass(field.type):
            values[field.name] = build(typing.cast(type, field.type), by_flag)
        elif flag_of(field.name) in by_flag:
            values[field.name] = by_flag[flag_of(field.name)]
    return command(**values)


def to_plain(options: Any) -> dict[str, Any]:
    """Convert options to nested dictionaries of strings, numbers, lists and None."""
    import msgspec  # 10 ms that parsing alone does not need

    # JSON turns tuples into lists.
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(options, enc_hook=os.fspath))
    return plain


def flat(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `to_plain` by field name, without the groups of a command."""
    groups = (v.items() if isinstance(v, dict) else [(k, v)] for k, v in plain.items())
    return dict(itertools.chain.from_iterable(groups))


def from_plain(options_class: type[T], values: Mapping[str, Any]) -> T:
    """Convert the result of `to_plain` back; missing fields get defaults, others are ignored."""
    plain, by_flag = flat(values), {}
    for spec in specs(options_class):
        if spec.field in plain:
            value = plain[spec.field]
            items = [_typed(spec, item) for item in (value if isinstance(value, list) else [value])]
            by_flag[spec.flag] = tuple(items) if isinstance(value, list) else items[0]
    return build(options_class, by_flag)


def _typed(spec: OptionSpec, value: Any) -> Any:
    is_path = isinstance(value, (str, os.PathLike)) and Path in alternatives(spec.type)
    return Path(value) if is_path and value not in spec.choices else value


def fits(annotation: Any, value: Any) -> bool:
    """Return whether a value has the type of an option; a path may be a string.

    >>> fits(int | Literal["auto"], "auto"), fits(float, 1), fits(bool, 1)
    (True, True, False)
    """
    kinds, is_tuple = alternatives(annotation), typing.get_origin(annotation) is tuple
    if is_tuple and not isinstance(value, (tuple, list)):
        return False
    return all(any(_is(kind, item) for kind in kinds) for item in (value if is_tuple else [value]))


def _is(kind: Any, value: Any) -> bool:
    """Return whether a value is a literal value or an instance of a type."""
    if not isinstance(kind, type):
        return isinstance(value, type(kind)) and bool(value == kind)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, (str, os.PathLike) if kind is Path else kind)
