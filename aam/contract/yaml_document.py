"""YAML documents with the line of every key for error messages.

The one module of the contract that needs more than the standard library: PyYAML, which comes with
both programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from aam.contract.errors import ConfigurationError
from aam.contract.files import require
from aam.contract.records import Entry
from aam.contract.suggestions import nearest

__all__ = ["Entry", "Loader", "entries", "foreign", "load", "read_entries"]

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?\Z")
_RESOLVERS = {
    first: [("tag:yaml.org,2002:str", _BASE_60), *others]
    for first, others in _SAFE.yaml_implicit_resolvers.items()
}
Loader: Any = type("Loader", (_SAFE,), {"yaml_implicit_resolvers": _RESOLVERS})
"""The safe loader of PyYAML, but 24:00:00 is text: in YAML 1.1 it is 86400, a number to base 60."""
DEEPEST = 20
"""Levels of lists and mappings; the C loader recurses without a limit and would crash."""


def load(text: str) -> Any:
    """Return the content of a YAML document that comes with this program."""
    return yaml.load(text, Loader=Loader)


def entries(text: str, name: str, known: Iterable[str]) -> dict[str, Entry]:
    """Read the top-level mapping of a YAML file.

    Args:
        text: content of the file.
        name: name of the file in messages.
        known: keys that may occur.

    Raises:
        ConfigurationError: broken YAML, no mapping, a key twice, an unknown key, or a value that no
            setting can hold, each with its line; an unknown key with the nearest known one.
    """
    try:
        _require_plain(text, name)
        loader = Loader(text)
        try:
            root = loader.get_single_node()
            return _entries(loader, root, name, tuple(known)) if root is not None else {}
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigurationError("Broken YAML", f"{where}, {problem}", "correct it") from error


def foreign(text: str, name: str) -> Any:
    """Return the content of a YAML document of another program.

    Raises:
        ConfigurationError: broken YAML, or nested too deeply.
    """
    try:
        _require_plain(text, name)
        return load(text)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigurationError("Broken YAML", f"{name}, {error}", "correct it") from error


def read_entries(path: Path, what: str, known: Iterable[str]) -> dict[str, Entry]:
    """Read the top-level mapping of a YAML file that the user names.

    Raises:
        MissingInput: `what`, such as "file for --config", does not exist or cannot be read.
        ConfigurationError: see `entries`.
    """
    try:
        text = require(path, what).read_text()
    except UnicodeDecodeError as error:
        evidence = f"'{path}', {error}"
        raise ConfigurationError("Not a text file", evidence, "save it as UTF-8") from error
    return entries(text, str(path), known)


def _require_plain(text: str, name: str) -> None:
    """Check that there is no alias, no NUL character and no deep nesting of lists and mappings."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        where = f"{name}:{event.start_mark.line + 1}" if event.start_mark else name
        if isinstance(event, yaml.AliasEvent):
            # Nine levels of aliases in 357 bytes stand for 400 million values.
            evidence = f"*{event.anchor} in {where}"
            raise ConfigurationError("An alias in YAML", evidence, "write its value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                evidence = f"{where}, more than {DEEPEST} levels"
                raise ConfigurationError("Lists nested too deeply", evidence, "correct it")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and "\0" in event.value:
            raise ConfigurationError("A NUL character in a value", where, "remove it")


def _entries(loader: Any, root: Any, name: str, known: tuple[str, ...]) -> dict[str, Entry]:
    if not isinstance(root, yaml.MappingNode):
        where = f"{name}:{root.start_mark.line + 1}"
        raise ConfigurationError("Not a mapping", where, "write `key: value` lines")
    found: dict[str, Entry] = {}
    for key_node, value_node in root.value:
        where = f"{name}:{key_node.start_mark.line + 1}"
        key = str(key_node.value)
        if key not in known:
            remedy = nearest(key, known, f"known are {', '.join(known)}")
            raise ConfigurationError("An unknown key", f"'{key}' in {where}", remedy)
        if key in found:
            raise ConfigurationError("A key twice", f"'{key}' in {where}", "keep one of them")
        try:
            value = loader.construct_object(value_node, deep=True)
        except (ValueError, OverflowError) as error:  # a date with month 13, a number too long
            remedy = "correct it, or quote it to make it text"
            raise ConfigurationError("Not a value", f"{where}, {error}", remedy) from error
        found[key] = Entry(value, where)
    return found
