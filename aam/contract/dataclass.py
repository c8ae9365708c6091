"""Frozen dataclasses without generated code, for modules that every launch imports.

`dataclasses` writes and compiles the source of six methods for each class: a sixth of the
processor time of a launch. Here all classes share six methods that read `dataclasses.fields`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, kw_only: bool = False) -> Any:
        """Make a frozen dataclass, as `dataclasses.dataclass` does with the same arguments."""
        assert frozen, "the shared methods make a class frozen"
        declare = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)

        def declared(cls: type) -> type:
            for name, method in _METHODS.items():
                setattr(cls, name, cls.__dict__.get(name, method))
            return declare(cls)

        return declared


@functools.cache
def _template(cls: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the default of each field in order, MISSING without one, and the default factories."""
    fields = dataclasses.fields(cls)
    factories = {field.name: field.default_factory for field in fields}
    factories = {name: f for name, f in factories.items() if f is not dataclasses.MISSING}
    return {field.name: field.default for field in fields}, factories


def _init(self: Any, *positional: Any, **named: Any) -> None:
    defaults, factories = _template(self.__class__)
    leading = dict(zip(self.__match_args__, positional, strict=False))
    values = {**defaults, **leading, **named}  # in the order of the fields, as records are written
    for name, factory in factories.items():
        if values[name] is dataclasses.MISSING:
            values[name] = factory()
    absent = [name for name, value in values.items() if value is dataclasses.MISSING]
    repeated = leading.keys() & named.keys() or len(leading) < len(positional)
    if absent or repeated or len(values) > len(defaults):
        form = f"{type(self).__qualname__}({', '.join(defaults)})"
        raise TypeError(f"{form} got {len(positional)} positional arguments and {[*named]}")
    self.__dict__.update(values)


def _items(self: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))


def _equal(self: Any, other: object) -> bool:
    return _items(self) == _items(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_items(self))


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in _items(self))
    return f"{type(self).__qualname__}({values})"


def _refuse(self: Any, name: str, *_: Any) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change field '{name}'")


_METHODS = {
    "__init__": _init,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
}
