"""The cheap frozen dataclasses hold what the standard ones do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from aam.options.frozen import dataclass


@dataclass(frozen=True)
class Point:
    """A class with every kind of field."""

    x: int
    y: int = 2
    rest: list[int] = dataclasses.field(default_factory=list)
    name: str = dataclasses.field(default="p", kw_only=True)
    secret: str = dataclasses.field(default="s", repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Standard:
    """The same, as the standard library makes it."""

    x: int
    y: int = 2
    rest: list[int] = dataclasses.field(default_factory=list)
    name: str = dataclasses.field(default="p", kw_only=True)
    secret: str = dataclasses.field(default="s", repr=False, compare=False)


@dataclass(frozen=True)
class Farther(Point):
    """One that has a field more."""

    z: int = 3


CALLS: tuple[Callable[[Any], Any], ...] = (
    lambda kind: kind(1),
    lambda kind: kind(1, 5, [3], name="q"),
    lambda kind: kind(name="q", rest=[1], x=4),
)
WRONG: tuple[Callable[[Any], Any], ...] = (
    lambda kind: kind(),
    lambda kind: kind(1, x=1),
    lambda kind: kind(1, w=1),
    lambda kind: kind(1, 2, [], "t", "name"),
)


@pytest.mark.parametrize("call", CALLS)
def test_values_are_those_of_the_standard_class(call: Callable[[Any], Any]) -> None:
    ours, theirs = call(Point), call(Standard)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Standard", "Point")
    assert ours == call(Point)
    assert ours != theirs
    assert dataclasses.replace(ours, y=9) == Point(ours.x, 9, ours.rest, name=ours.name)
    assert copy.deepcopy(ours) == pickle.loads(pickle.dumps(ours)) == ours


@pytest.mark.parametrize("call", WRONG)
def test_wrong_values_are_refused(call: Callable[[Any], Any]) -> None:
    for kind in (Point, Standard):
        with pytest.raises(TypeError):
            call(kind)


def test_nothing_changes() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert Point(1).rest is not point.rest


def test_equal_ones_have_one_hash_and_kinds_differ() -> None:
    one, other = Point(1, rest=(), name="q"), Point(name="q", rest=(), x=1)  # type: ignore[arg-type]
    assert hash(one) == hash(other)
    assert {one: 1}[other] == 1
    assert dataclasses.replace(one, secret="t") == one
    assert Farther(1) != Point(1)
    assert [field.name for field in dataclasses.fields(Farther)] == [
        *("x", "y", "rest", "name", "secret", "z")
    ]
    assert Farther(1, 2, [], "t", 4).z == 4
