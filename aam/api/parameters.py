"""Parameters of the estimators: signature and documentation from the options of `aam train`."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import textwrap
import typing
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from aam.api.tables import Sequences
from aam.contract.options import OptionSpec, specs
from aam.contract.options.commands.train import Train
from aam.contract.options.contradictions import of_member, requirements
from aam.contract.options.device import ScaleOptions
from aam.contract.options.field import members
from aam.contract.options.study import CovariateOptions, TableOptions, TargetOptions
from aam.contract.options.training import RunOptions

FIRST = ("members", "folds", "epochs", "device", "seed", "pretrained_encoder")
"""Parameters that stand first; then those of the short help of `aam train`, then the others."""

_REPLACED = {"group_column", "loss_config", "taxonomy"} | {
    spec.field
    for group in (TableOptions, TargetOptions, CovariateOptions, RunOptions, ScaleOptions)
    for spec in specs(group)
    if spec.field != "overwrite"
}
"""Options that arguments of `fit` or of methods of the model replace, or of several processes or
targets."""


def _place(spec: OptionSpec) -> tuple[int, bool, bool]:
    """Return the place of an option in the signature, for sorting."""
    first = FIRST.index(spec.field) if spec.field in FIRST else len(FIRST)
    return first, not spec.basic, of_member(spec)


PARAMETERS = sorted((spec for spec in specs(Train) if spec.field not in _REPLACED), key=_place)
"""Options of `aam train` that are parameters, in the order of the signature."""


def _union(*types: Any) -> Any:
    return functools.reduce(operator.or_, types)


_OF_TABLES: dict[str, tuple[Any, str]] = {
    "sequences": (
        Sequences,
        "(dict, path or None, default None): DNA by feature id, or a FASTA or .qza file; None if "
        "the ids are the sequences.",
    ),
    "output_dir": (
        _union(str, PathLike[str], None),
        "(path or None, default None): run folder to write, for `aam report`, `aam.load` and the "
        "plots of `model_`; None writes none.",
    ),
}
"""Type and documentation of the parameters that are no options of the model."""


def _annotation(option_type: Any) -> Any:
    """Return the type of a parameter: a path may be a string, a tuple any sequence or one item."""
    origin, parts = typing.get_origin(option_type), typing.get_args(option_type)
    if origin is Annotated:
        return Literal[tuple(parts[1])]
    if origin is tuple:
        item: Any = _annotation(parts[0])
        return _union(item, Sequence[item])
    if parts and origin is not Literal:
        return _union(*map(_annotation, parts))
    return _union(str, PathLike[str]) if option_type is Path else option_type


# Made from the declarations of the options, so that signature, defaults and documentation are those
# of the command line.
Parameters: Any = dataclasses.make_dataclass(
    "Parameters",
    [
        *((spec.field, _annotation(spec.type), spec.default) for spec in PARAMETERS[: len(FIRST)]),
        *((name, annotation, None) for name, (annotation, _) in _OF_TABLES.items()),
        *((spec.field, _annotation(spec.type), spec.default) for spec in PARAMETERS[len(FIRST) :]),
    ],
    kw_only=True,
    eq=False,
    repr=False,
)
"""Base class of the estimators, whose constructor has the parameters."""


def documented(estimator: type) -> type:
    """Decorate an estimator: add its parameters to its docstring."""
    by_name = {spec.field: _described(spec) for spec in PARAMETERS}
    by_name |= {name: text for name, (_, text) in _OF_TABLES.items()}
    entries = (
        textwrap.fill(f"{name} {by_name[name]}", 96, initial_indent=" " * 4,
                      subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False)
        for name in (field.name for field in dataclasses.fields(Parameters))
    )  # fmt: skip
    summary, _, rest = (estimator.__doc__ or "").partition("\n\n")
    rest = textwrap.dedent(rest.rstrip())
    estimator.__doc__ = "\n".join([summary, "", rest, "", "Args:", *entries, ""])
    return estimator


def _described(spec: OptionSpec) -> str:
    """Return type, range, default and help of an option, with the names of parameters."""
    names = ["path" if one is Path else "None" if one is type(None) else
             one.__name__ if isinstance(one, type) else repr(one)
             for one in members(spec.type)]  # fmt: skip
    if typing.get_origin(spec.type) is tuple:
        names = [*names, "or a sequence of these"]
    text = spec.help + requirements(spec)
    if of_member(spec):
        text += f" Read by the {spec.only_for} alone."
    text = re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda flag: flag[1].replace("-", "_"), text)
    limits = f", {spec.takes.description}" if spec.takes is not None else ""
    return f"({', '.join(names)}{limits}; default {spec.default!r}): {text}"
