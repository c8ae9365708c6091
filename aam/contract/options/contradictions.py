"""Contradictions between the options of a command, checked by their declarations.

`option` declares what an option needs, excludes or has an effect with. One check refuses a
contradiction in both programs and in the Python interface; `requirements` is its text in a help
page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aam.contract.errors import UsageError
from aam.contract.options.field import (
    EVERY_MEMBER,
    Conditions,
    OptionSpec,
    specs,
    values_by_flag,
)


@dataclass(frozen=True)
class _Values:
    """Values of the options of a command: declarations and values by flag."""

    specs: Mapping[str, OptionSpec]
    values: Mapping[str, Any]

    @property
    def given(self) -> list[OptionSpec]:
        """The options that have another value than their default."""
        return [spec for spec in self.specs.values() if self.has(spec)]

    def has(self, spec: OptionSpec) -> bool:
        value = self.values[spec.flag]
        return value is not None and value != spec.default

    def shown(self, spec: OptionSpec) -> str:
        value = self.values[spec.flag]
        return f"{spec.flag} {' '.join(words(value))}" if not isinstance(value, bool) else spec.flag

    def conditions(self, spec: OptionSpec, conditions: Conditions) -> Iterator[str]:
        """Yield the conditions of an option with its value, as far as the command has them."""
        if isinstance(conditions, Mapping):
            found = words(self.values[spec.flag])
            conditions = tuple(each for word, each in conditions.items() if word in found)
        yield from (each for each in conditions if any(flag in self.specs for flag in flags(each)))

    def hold(self, condition: str) -> bool:
        """Return whether a condition holds."""
        return any(self._holds(*one.split(" ", 1)) for one in condition.split(" or "))

    def _holds(self, flag: str, word: str = "") -> bool:
        if flag not in self.specs:
            return False
        return word in words(self.values[flag]) if word else self.has(self.specs[flag])


def require_consistent(options: Any) -> None:
    """Refuse options of a command that contradict each other.

    Raises:
        UsageError: names every option that is given with one that it excludes, or without one that
            it needs.
    """
    found = _values_of(options)
    wrong: dict[str, str] = {}
    for spec in found.given:
        for condition in found.conditions(spec, spec.needs):
            if not found.hold(condition):
                remedy = f"add {condition}, or leave {spec.flag} out"
                wrong[f"{found.shown(spec)} without {condition}"] = remedy
        for condition in found.conditions(spec, spec.excludes):
            if found.hold(condition):
                wrong[f"{found.shown(spec)} with {condition}"] = "leave one of the two out"
    if wrong:
        remedies = "; ".join(dict.fromkeys(wrong.values()))
        raise UsageError("Options that contradict each other", ", ".join(wrong), remedies)


def without_effect(options: Any) -> list[str]:
    """Return a sentence for each reason for which given options have no effect."""
    found = _values_of(options)
    members = getattr(options, "chosen_members", None)
    ignored: dict[str, list[str]] = {}
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
    # The heading of an option says which member it needs.
    needs = [each for each in _described(spec.needs) if not each.startswith("--members")]
    kinds = {
        "Needs": needs,
        "Not with": _described(spec.excludes),
        "Only with": _described(spec.only_with),
    }
    return "".join(f" {kind} {', '.join(listed)}." for kind, listed in kinds.items() if listed)


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


def _described(conditions: Conditions) -> list[str]:
    if isinstance(conditions, Mapping):
        return [f"{condition} ({value})" for value, condition in conditions.items()]
    return list(conditions)


def _values_of(options: Any) -> _Values:
    values = values_by_flag(options)
    if (members := getattr(options, "chosen_members", None)) is not None:
        values["--members"] = members
    return _Values({spec.flag: spec for spec in specs(type(options))}, values)
