"""Conditions between options of a command: contradictions, options without effect, help texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from aam.contract.errors import UsageError
from aam.contract.options import EVERY_MEMBER, OptionSpec, specs, values_of


def _violated(options: Any) -> Iterator[tuple[str, OptionSpec, Any, str]]:
    """Yield violated conditions of options: kind, option, its value, condition."""
    declared = {spec.flag: spec for spec in specs(type(options))}
    values = values_of(options)
    if (members := getattr(options, "chosen_members", None)) is not None:
        values["--members"] = members

    def given(flag: str) -> bool:
        return values[flag] is not None and values[flag] != declared[flag].default

    def holds(condition: str) -> bool:
        for alternative in condition.split(" or "):
            flag, _, word = alternative.partition(" ")
            if flag in declared and (word in words(values[flag]) if word else given(flag)):
                return True
        return False

    for spec in filter(lambda spec: given(spec.flag), declared.values()):
        value = values[spec.flag]
        for kind in ("needs", "excludes", "only_with"):
            conditions = getattr(spec, kind)
            if isinstance(conditions, Mapping):
                conditions = [text for word, text in conditions.items() if word in words(value)]
            for condition in conditions:
                # A command may lack the options of a condition.
                applies = any(flag in declared for flag in flags(condition))
                if applies and holds(condition) == (kind == "excludes"):
                    yield kind, spec, value, condition
        if members is not None and of_member(spec) and spec.only_for not in members:
            yield "only_with", spec, value, f"the member {spec.only_for}"


def require_consistent(options: Any) -> None:
    """Refuse contradictory options of a command."""
    wrong = {}
    for kind, spec, value, condition in _violated(options):
        text = spec.flag if isinstance(value, bool) else f"{spec.flag} {' '.join(words(value))}"
        if kind == "needs":
            remedy = f"add {condition}, or leave {spec.flag} out"
            wrong[f"{text} without {condition}"] = remedy
        elif kind == "excludes":
            wrong[f"{text} with {condition}"] = "leave one of the two out"
    if wrong:
        remedies = "; ".join(dict.fromkeys(wrong.values()))
        raise UsageError("Options that contradict each other", ", ".join(wrong), remedies)


def without_effect(options: Any, undecided: Collection[str] = ()) -> list[str]:
    """Return a warning for each reason why options have no effect."""
    ignored: dict[str, list[str]] = {}
    for kind, spec, _, condition in _violated(options):
        if kind == "only_with" and condition not in undecided:
            ignored.setdefault(condition, []).append(spec.flag)
    return [no_effect(condition, *flags) for condition, flags in ignored.items()]


def no_effect(condition: str, *flags: str) -> str:
    """Return the warning of options that have no effect without a condition."""
    options = "these options have" if len(flags) > 1 else "this option has"
    return f"Without {condition} {options} no effect: {', '.join(flags)}."


def of_member(spec: OptionSpec) -> bool:
    """Return whether only one member reads an option."""
    return spec.only_for not in ("", EVERY_MEMBER)


def words(value: Any) -> list[str]:
    """Return a value or the values of a tuple as texts of a condition."""
    return [str(item) for item in value] if isinstance(value, tuple) else [str(value)]


def flags(condition: str) -> list[str]:
    """Return the flags in a condition.

    >>> flags("--tree or --penalty 0")
    ['--tree', '--penalty']
    """
    return [alternative.split(" ")[0] for alternative in condition.split(" or ")]
