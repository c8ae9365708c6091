"""Frozen dataclasses without generated code, for modules that every launch imports.

`dataclasses` writes and compiles the source of six methods for each class, which took a fifth of
the launcher's start. Here all classes share five methods that read `dataclasses.fields`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, kw_only: bool = False) -> Any:
        """Make a frozen dataclass, as `dataclasses.dataclass` does with the same arguments."""
        assert frozen, "the shared methods are those of frozen classes"
        declare = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)

        def declared(cls: type) -> type:
            for name, method in _METHODS.items():
                setattr(cls, name, cls.__dict__.get(name, method))
            return declare(cls)

        return declared


def _init(self: Any, *positional: Any, **named: Any) -> None:
    fields = {field.name: field for field in dataclasses.fields(self)}
    leading = dict(zip(self.__match_args__, positional, strict=False))
    if (
        len(leading) < len(positional)
        or leading.keys() & named
        or not named.keys() <= fields.keys()
    ):
        form = f"{type(self).__qualname__}({', '.join(fields)})"
        raise TypeError(f"{form} got {len(positional)} positional arguments and {[*named]}")
    values = leading | named
    for name, field in fields.items():
        if name not in values:
            if field.default is not dataclasses.MISSING:
                values[name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                values[name] = field.default_factory()
            else:
                raise TypeError(f"{type(self).__qualname__} lacks the argument '{name}'")
        self.__dict__[name] = values[name]  # in the order of the fields, as records are written


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
