"""Pickle parser for plain values that imports and calls nothing named in the pickle.

`pickle.Unpickler` runs the program that a pickle is, and restricting the names that it may use has
failed in torch more than once (docs/decisions/0001-checkpoint-reader.md). Here `pickletools` splits
the pickle into opcodes, and the few opcodes of numbers, strings and containers are executed. A name
becomes a `Name`, an instance becomes the result of the caller's constructor.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MOST_OPCODES = 4_000_000
"""Limit of opcodes, parsed in about 4 seconds; 200 transformer layers with Adam have 300,000."""

LARGEST_STACK = 100_000
"""Limit of items and marks outside containers; a pickler fills containers by the thousand."""

DEEPEST = 50
"""Limit of the nesting of containers; a Lightning checkpoint has 8 levels."""


class Damaged(ValueError):
    """Error of content that is damaged or holds more than plain values."""


@dataclass(frozen=True)
class Name:
    """Name of a class or function in a pickle; it is not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Record:
    """Instance of a class that is not imported: its arguments and its state, if any."""

    arguments: tuple[Any, ...] = ()
    state: Any = None


def load(
    data: bytes,
    constructors: Mapping[str, Callable[..., Any]],
    others: Callable[[Name], bool] = lambda name: False,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the value that a pickle of protocol 2 to 5 describes.

    Args:
        constructors: replacements of classes and functions, by name.
        others: whether the pickle may refer to another name, which stays a `Name`.
        persistent: resolves persistent ids (the storages of tensors).

    Raises:
        Damaged: it is damaged, or holds a name, an opcode or a nesting that is not expected.
    """
    machine = _Machine(constructors, others, persistent)
    try:
        value = machine.run(data)
    except Damaged:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        # Exceptions of the stack machine on bytes that no pickler wrote.
        raise Damaged(f"its pickle is damaged ({type(error).__name__})") from error
    _check_nesting(value)
    return value


class _Machine:
    """Stack machine of one pickle, with its memo."""

    def __init__(
        self,
        constructors: Mapping[str, Callable[..., Any]],
        others: Callable[[Name], bool],
        persistent: Callable[[Any], Any] | None,
    ) -> None:
        self.constructors, self.others, self.persistent = constructors, others, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number >= MOST_OPCODES:
                raise Damaged(f"its pickle has more than {MOST_OPCODES} opcodes")
            if len(self.stack) + len(self.marks) > LARGEST_STACK:
                raise Damaged(f"its pickle has more than {LARGEST_STACK} items on its stack")
            name = opcode.name
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif (step := _STEPS.get(name)) is not None:
                step(self, argument)
            elif name == "STOP":
                (value,) = self.stack
                return value
            elif name not in ("PROTO", "FRAME"):
                raise Damaged(f"its pickle has the opcode {name}")
        raise Damaged("its pickle has no end")

    def pop(self, number: int) -> list[Any]:
        """Remove the last items of the stack."""
        if len(self.stack) - number < (self.marks[-1] if self.marks else 0):
            raise Damaged("its pickle is damaged (empty stack)")
        first = len(self.stack) - number
        items, self.stack[first:] = self.stack[first:], []
        return items

    def pop_mark(self) -> list[Any]:
        """Remove the items above the last mark."""
        first = self.marks.pop()
        items, self.stack[first:] = self.stack[first:], []
        return items

    def name(self, module: str, name: str) -> None:
        found = Name(module, name)
        if str(found) not in self.constructors and not self.others(found):
            raise Damaged(f"its pickle refers to '{found}'")
        self.stack.append(found)

    def call(self) -> None:
        name, arguments = self.pop(2)
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise Damaged("its pickle is damaged (a call)")
        if str(name) not in self.constructors:
            raise Damaged(f"its pickle calls '{name}'")
        self.stack.append(self.constructors[str(name)](*arguments))

    def build(self) -> None:
        (state,) = self.pop(1)
        made = self.stack[-1]
        if isinstance(made, Record):
            made.state = state
        elif not isinstance(made, dict):  # attributes of an OrderedDict are ignored
            raise Damaged("its pickle sets attributes")

    def set_items(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is not dict or len(items) % 2:
            raise Damaged("its pickle is damaged (not a dictionary)")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Larger integers can be chosen so that their hashes collide.
            small = type(key) is int and abs(key) < 1 << 32
            if not (small or isinstance(key, str | Record)):
                raise Damaged(f"its pickle has a key of type {type(key).__name__}")
            into[key] = value

    def append(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is not list:
            raise Damaged("its pickle is damaged (not a list)")
        into.extend(items)

    def resolve(self) -> None:
        (given,) = self.pop(1)
        if self.persistent is None:
            raise Damaged("its pickle has persistent ids")
        self.stack.append(self.persistent(given))

    def remember(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else place] = self.stack[-1]


_LITERALS = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
    + ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_mark())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.pop(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.pop(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.pop(3))),
    "APPEND": lambda m, _: m.append(m.pop(1)),
    "APPENDS": lambda m, _: m.append(m.pop_mark()),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.pop_mark()),
    "BINPUT": lambda m, place: m.remember(place),
    "LONG_BINPUT": lambda m, place: m.remember(place),
    "MEMOIZE": lambda m, _: m.remember(None),
    "BINGET": lambda m, place: m.stack.append(m.memo[place]),
    "LONG_BINGET": lambda m, place: m.stack.append(m.memo[place]),
    "GLOBAL": lambda m, both: m.name(*both.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*m.pop(2)),
    "REDUCE": lambda m, _: m.call(),
    "NEWOBJ": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.resolve(),
}
"""Opcodes that torch.save and torch.distributed.checkpoint write; see `pickletools`."""


def _check_nesting(value: Any) -> None:
    """Refuse cyclic values, and values that become too large when their items are visited.

    A pickle of a hundred bytes can put a list twice into a list, that one twice into another, and
    so on: small in memory, endless for everything that visits its items.
    """
    visited = 0
    level = [value]
    for _ in range(DEEPEST):
        below = []
        for container in level:
            for item in _items(container):
                visited += 1
                if visited > MOST_OPCODES:
                    raise Damaged("its content repeats without end")
                below.append(item)
        if not below:
            return
        level = below
    raise Damaged(f"its content is nested more than {DEEPEST} deep")


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, Record):
        yield from (value.arguments, value.state)
