"""Frozen dataclasses that a short start can afford.

`dataclasses.dataclass(frozen=True)` compiles three to six methods for each class: 0.4 ms, and the
launcher makes sixty classes before it does anything. Here all classes share methods that read the
fields when they are called, which takes a tenth of that. What is made is a dataclass all the same:
`fields`, `replace`, `asdict` and tyro know it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # for whoever imports it from here
else:
    import dataclasses

    def dataclass(*, frozen: bool):
        """Make a frozen dataclass of a class; its fields are its values, as in the standard one."""

        def make(kind: type) -> type:
            for method in (__init__, __repr__, __eq__, __hash__, __setattr__, __delattr__):
                if method.__name__ not in kind.__dict__:
                    setattr(kind, method.__name__, method)
            return dataclasses.dataclass(init=False, repr=False, eq=False)(kind)

        if not frozen:
            raise TypeError("only frozen classes are made here")
        return make

    def __init__(self, *args, **given) -> None:
        name = type(self).__name__
        all_fields = dataclasses.fields(self)
        in_order = [field.name for field in all_fields if not field.kw_only]
        if len(args) > len(in_order):
            raise TypeError(f"{name} takes {len(in_order)} values by place, not {len(args)}")
        values = dict(zip(in_order, args, strict=False))
        twice = values.keys() & given.keys()
        unknown = given.keys() - {field.name for field in all_fields}
        if twice or unknown:
            raise TypeError(f"{name} has no use for {sorted(twice | unknown)}")
        values |= given
        for field in all_fields:
            if field.name in values:
                value = values[field.name]
            elif field.default is not dataclasses.MISSING:
                value = field.default
            elif field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            else:
                raise TypeError(f"{name} lacks {field.name!r}")
            self.__dict__[field.name] = value

    def __repr__(self) -> str:
        shown = (field.name for field in dataclasses.fields(self) if field.repr)
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return compared(self) == compared(other)

    def __hash__(self) -> int:
        return hash(compared(self))

    def compared(self: object) -> tuple:
        """Return the values that make two of a class equal."""
        fields = dataclasses.fields(self)
        return tuple(getattr(self, field.name) for field in fields if field.compare)

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
