"""Contradictions between the options of a command, checked by their declarations.

`option` declares what an option needs, excludes or has an effect with. One check refuses a
contradiction in both programs and in the Python interface; `requirements` is its text in a help
page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aam.contract.errors import UsageError
from aam.contract.options.field import (
    EVERY_MEMBER,
    Conditions,
    OptionSpec,
    specs,
    values_by_flag,
)


class _Values:
    """Declarations and values of the options of a command, by flag."""

    def __init__(self, options: Any) -> None:
        self.specs = {spec.flag: spec for spec in specs(type(options))}
        self.values = values_by_flag(options)
        if (members := getattr(options, "chosen_members", None)) is not None:
            self.values["--members"] = members
        self.given = [spec for spec in self.specs.values() if self._has(spec.flag)]

    def _has(self, flag: str) -> bool:
        value = self.values[flag]
        return value is not None and value != self.specs[flag].default

    def conditions(self, spec: OptionSpec, conditions: Conditions) -> list[str]:
        """Return the conditions of an option with its value, as far as the command has them."""
        if isinstance(conditions, Mapping):
            found = words(self.values[spec.flag])
            conditions = tuple(each for word, each in conditions.items() if word in found)
        return [each for each in conditions if any(flag in self.specs for flag in flags(each))]

    def hold(self, condition: str) -> bool:
        """Return whether a condition, such as `--tree or --penalty 0`, holds."""
        for part in condition.split(" or "):
            flag, _, word = part.partition(" ")
            if flag in self.specs and (
                word in words(self.values[flag]) if word else self._has(flag)
            ):
                return True
        return False


def require_consistent(options: Any) -> None:
    """Refuse options of a command that contradict each other.

    Raises:
        UsageError: names every option that is given with one that it excludes, or without one that
            it needs.
    """
    found, wrong = _Values(options), {}
    for spec in found.given:
        value = found.values[spec.flag]
        shown = spec.flag if isinstance(value, bool) else f"{spec.flag} {' '.join(words(value))}"
        for condition in found.conditions(spec, spec.needs):
            if not found.hold(condition):
                remedy = f"add {condition}, or leave {spec.flag} out"
                wrong[f"{shown} without {condition}"] = remedy
        for condition in found.conditions(spec, spec.excludes):
            if found.hold(condition):
                wrong[f"{shown} with {condition}"] = "leave one of the two out"
    if wrong:
        remedies = "; ".join(dict.fromkeys(wrong.values()))
        raise UsageError("Options that contradict each other", ", ".join(wrong), remedies)


def without_effect(options: Any) -> list[str]:
    """Return a sentence for each reason for which given options have no effect."""
    found, ignored = _Values(options), dict[str, list[str]]()
    members = getattr(options, "chosen_members", None)
    for spec in found.given:
        for condition in found.conditions(spec, spec.only_with):
            if not found.hold(condition):
                ignored.setdefault(condition, []).append(spec.flag)
        if members is not None and of_member(spec) and spec.only_for not in members:
            ignored.setdefault(f"the member {spec.only_for}", []).append(spec.flag)
    return [
        f"Without {reason} {'these options have' if len(flags) > 1 else 'this option has'} "
        f"no effect: {', '.join(flags)}."
        for reason, flags in ignored.items()
    ]


def requirements(spec: OptionSpec) -> str:
    """Return the sentences of a help page about what an option needs, excludes or goes with."""
    text = ""
    for title, conditions in (
        ("Needs", spec.needs), ("Not with", spec.excludes), ("Only with", spec.only_with)
    ):  # fmt: skip
        if isinstance(conditions, Mapping):
            listed = [f"{condition} ({value})" for value, condition in conditions.items()]
        else:
            listed = list(conditions)
        if title == "Needs":  # the heading of an option says which member it needs
            listed = [each for each in listed if not each.startswith("--members")]
        text += f" {title} {', '.join(listed)}." if listed else ""
    return text


def of_member(spec: OptionSpec) -> bool:
    """Return whether one member alone reads an option."""
    return spec.only_for not in ("", EVERY_MEMBER)


def words(value: Any) -> list[str]:
    """Return a value, or each of a tuple, as a condition has it."""
    return [str(one) for one in value] if isinstance(value, tuple) else [str(value)]


def flags(condition: str) -> list[str]:
    """Return the flags in a condition.

    >>> flags("--tree or --penalty 0")
    ['--tree', '--penalty']
    """
    return [one.split(" ")[0] for one in condition.split(" or ")]
