"""Contradictions that options declare: one declaration gives error, warning and help."""

import re
import typing
from dataclasses import dataclass
from pathlib import Path

import pytest

from aam.contract.errors import UsageError
from aam.contract.options import EVERY_MEMBER, Conditions, build, group, help_page, option, specs
from aam.contract.options.commands import find, names
from aam.contract.options.conditions import flags, require_consistent, without_effect


@dataclass(frozen=True)
class Leaves:
    """The leaves."""

    leaf_width: int = option("Width of a leaf.", default=3, only_with=("--shape round",))
    leaf_seed: int = option("Seed of the leaves.", default=1, only_for=EVERY_MEMBER)


@dataclass(frozen=True, kw_only=True)
class Plant:
    """Plant a tree that no command has."""

    leaves: Leaves = group(only_for="oak")
    shape: str = option("Shape.", default="oval", excludes={"square": "--oval or --round"})
    round: bool = option("Round.", default=False)
    pot: Path | None = option("Pot.", needs=("--soil or --leaf-seed 9",))
    soil: str | None = option("Soil.", excludes=("--round",))
    members: tuple[str, ...] = option("Members.", default=("oak", "elm"))

    @property
    def chosen_members(self) -> tuple[str, ...]:
        return self.members


def plant(**given: object) -> Plant:
    return build(Plant, {"--" + name.replace("_", "-"): value for name, value in given.items()})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pot": Path("p")}, "--pot p without --soil or --leaf-seed 9; add"),
        ({"soil": "s", "round": True}, "--soil s with --round; leave one of the two out"),
        ({"shape": "square", "round": True, "pot": Path("p")}, "--round, --pot p without"),
    ],
)
def test_a_declared_contradiction_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        require_consistent(plant(**given))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"pot": Path("p"), "soil": "s"},
        {"pot": Path("p"), "leaf_seed": 9},
        {"shape": "flat", "round": True},
        {"shape": "square"},
    ],
)
def test_other_values_are_taken(given: dict[str, object]) -> None:
    require_consistent(plant(**given))
    assert without_effect(plant(**given)) == []


def test_options_without_effect_are_named_with_what_they_lack() -> None:
    assert without_effect(plant(leaf_width=5, shape="round")) == []
    assert without_effect(plant(leaf_width=5)) == [
        "Without --shape round this option has no effect: --leaf-width."
    ]
    given = plant(leaf_width=5, shape="round", leaf_seed=2, members=("elm",))
    assert without_effect(given) == [
        "Without the member oak this option has no effect: --leaf-width."
    ]


def test_the_help_says_what_an_option_needs_and_which_member_reads_it() -> None:
    page = help_page.page("aam", "plant", Plant, specs(Plant), everything=True)
    parts, own = page.split("Oak only\n")
    assert " ".join(own.split()) == (
        "--leaf-width N Width of a leaf. Only with --shape round. (default: 3)"
    )
    words = " ".join(parts.split())
    assert "Shape. Not with --oval or --round (square). (default: oval)" in words
    assert "Pot. Needs --soil or --leaf-seed 9." in words
    assert "The leaves --leaf-seed N" in words


@pytest.mark.parametrize("command", names())
def test_conditions_are_on_options_with_that_value(command: str) -> None:
    every = [*names(), command]  # its own last, where several commands have an option
    known = {s.flag: s for name in every for s in specs(typing.cast(type, find(name)))}
    for spec in specs(typing.cast(type, find(command))):
        for conditions in (spec.needs, spec.excludes, spec.only_with):
            for condition in each(conditions):
                assert set(flags(condition)) <= set(known)
                flag, _, word = condition.partition(" ")
                if word and "or" not in word:
                    assert word in known[flag].choices
            if isinstance(conditions, dict):
                assert set(conditions) <= set(spec.choices)


def each(conditions: Conditions) -> tuple[str, ...]:
    return conditions if isinstance(conditions, tuple) else tuple(conditions.values())
