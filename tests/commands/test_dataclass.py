"""Dataclasses of the contract behave as those of the standard library, without generated code."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from aam.contract.dataclass import dataclass


def declared(decorator: Any) -> type:
    @decorator(frozen=True)
    class Base:
        """A record."""

        first: int
        second: str = "b"

    @decorator(frozen=True)
    class Record(Base):
        """A record that extends another one."""

        registry: ClassVar = ("not", "a field")
        second: str = "c"
        values: dict[str, int] = dataclasses.field(default_factory=dict)
        last: int | None = dataclasses.field(default=None, kw_only=True)

    return Record


RECORD, STANDARD = declared(dataclass), declared(dataclasses.dataclass)

CALLS: list[Callable[[Any], Any]] = [
    lambda record: record(1),
    lambda record: record(1, "x", {"a": 1}, last=4),
    lambda record: record(second="x", first=2),
    lambda record: dataclasses.replace(record(1), second="y", last=3),
    lambda record: record(1).values is record(1).values,
    lambda record: record(1) == record(1, "c"),
    lambda record: record(1) == record(2),
    lambda record: record(1) == (1, "c", {}, None),
    lambda record: hash(record(1, values=())) == hash(record(1, "c", ())),
    lambda record: vars(record(last=1, values={}, first=3)),
    lambda record: dataclasses.asdict(record(1)),
    lambda record: [field.name for field in dataclasses.fields(record)],
    lambda record: record(),
    lambda record: record(1, unknown=2),
    lambda record: record(1, "x", {}, 4),
    lambda record: record(1, first=2),
    lambda record: hash(record(1)),
    lambda record: setattr(record(1), "first", 2),
    lambda record: delattr(record(1), "first"),
]


def outcome(call: Callable[[Any], Any], record: type) -> str:
    try:
        value = call(record)
    except (TypeError, AttributeError) as error:
        return type(error).__name__
    return f"{list(value.items()) if isinstance(value, dict) else value!r}"


@pytest.mark.parametrize("call", CALLS)
def test_a_record_behaves_as_a_standard_dataclass(call: Callable[[Any], Any]) -> None:
    assert outcome(call, RECORD) == outcome(call, STANDARD)


@dataclass(frozen=True)
class Stored:
    """A record of this module, as pickle needs."""

    number: int
    text: str = ""


def test_a_record_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(Stored(3, "x"))) == Stored(3, "x")
