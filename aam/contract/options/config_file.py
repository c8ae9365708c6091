"""Values of options from a file (--config): YAML, or the run record of an earlier run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from aam.contract.errors import ConfigurationError, UsageError, nearest
from aam.contract.options.command_line import parse_known
from aam.contract.options.field import OptionSpec, flag_of, flat, members, numbered
from aam.contract.records import Sourced, read_json, read_yaml_entries

OF_ONE_RUN = ("resume_from", "overwrite")
"""Options that are not taken from a run record, like outputs: they would replace that run."""

OF_ONE_HOST = ("device", "num_workers", "cpu_threads")
"""Options that are not taken from a run record: it has what its host had in place of `auto`."""


class _RecordedInput(msgspec.Struct):
    path: str


class _RecordedOptions(msgspec.Struct):
    """A run record as far as its options are read."""

    command: str
    options: dict[str, Any]
    inputs: dict[str, _RecordedInput] = {}


def read_config(path: Path, options: Iterable[OptionSpec], command: str) -> dict[str, Any]:
    """Return flag -> value of the options that a file gives to a command."""
    known = {spec.field: spec for spec in options}
    path = path / "run.json" if path.is_dir() else path
    if path.suffix != ".json":
        keys = [key for field in known for key in (field, field.replace("_", "-"))]
        entries = read_yaml_entries(path, "file for --config", keys)
        given: dict[str, Any] = {}
        for key, entry in entries.items():
            given |= typed(known[key.replace("-", "_")], entry)
        return given
    record = read_json(path, _RecordedOptions, "run record", "give the run.json of a run")
    if record.command != command:
        evidence = f"'{path}' is of `aam {record.command}`"
        remedy = f"give one of `aam {command}`"
        raise UsageError("A run record of another command", evidence, remedy)
    given = {}
    for field, value in flat(record.options).items():
        if field not in known:
            otherwise = "the run is of another version; give its options by hand"
            remedy = nearest(field, known, otherwise)
            raise UsageError(f"`{command}` has no such option", f"'{field}' in '{path}'", remedy)
        spec = known[field]
        if spec.role == "output" or field in OF_ONE_RUN + OF_ONE_HOST or value is None:
            continue
        if value == (list(spec.default) if isinstance(spec.default, tuple) else spec.default):
            continue
        # The path of an input is absolute, its value as it was given.
        inputs = {flag: file.path for flag, file in record.inputs.items()}
        values = value if isinstance(value, list) else [value]
        stored = [
            inputs.get(flag) or each for flag, each in numbered(flag_of(field), values).items()
        ]
        given |= typed(spec, Sourced(stored if isinstance(value, list) else stored[0], str(path)))
    return given


def typed(spec: OptionSpec, entry: Sourced[Any]) -> dict[str, Any]:
    """Return the value that a file gives to an option, as flag -> value.

    Raises:
        UsageError: it does not suit the option.
        ConfigurationError: it is a date, a mapping or true where there is no switch.
    """
    value = entry.value
    if value is None and type(None) in members(spec.type):
        return {spec.flag: None}
    if isinstance(value, bool) and spec.type is bool:
        return {spec.flag: value}
    parts = value if isinstance(value, list) else [value]
    if any(isinstance(part, bool) or not isinstance(part, (str, int, float)) for part in parts):
        evidence = f"{spec.flag} '{value}' in {entry.source}"
        remedy = "write it in quotes if it is text"
        raise ConfigurationError("Not a value of an option", evidence, remedy)
    argv = [spec.flag, *map(str, parts)]
    if spec.repeated:
        argv = [f"{spec.flag}={part}" for part in parts]
    try:
        given, others = parse_known([spec], argv)
    except UsageError as error:
        evidence = f"{error.evidence} in {entry.source}"
        raise UsageError(error.cause, evidence, error.remedy) from error
    if others:
        evidence = f"{spec.flag} {value} in {entry.source}"
        raise UsageError("Several values for an option that takes one", evidence, "give one")
    return given
