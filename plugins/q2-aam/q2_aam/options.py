"""Parameters of the actions, made from the options that aam declares."""

import inspect
import typing
from pathlib import Path

from aam.contract.options import alternatives, specs
from aam.contract.options.commands import find

from .framework import plugin

_OF_A_RUN = {"output_dir", "overwrite", "resume_from", "checkpoint_every_n_steps"}
_OF_PROCESSES = {
    "distributed", "fsdp", "fsdp_sharded_checkpoint", "data_parallel", "processes",
    "rank_timeout",
}  # fmt: skip
_OF_ARTIFACTS = {
    "metadata_column", "group_column", "where", "color_by", "engine", "shard",
    "categorical_columns", "numeric_columns", "categorical_embed_dim", "categorical_fusion",
}  # fmt: skip
_LEFT_OUT = _OF_A_RUN | _OF_PROCESSES | _OF_ARTIFACTS
_PLAIN = {
    int: (plugin.Int, int),
    float: (plugin.Float, float),
    bool: (plugin.Bool, bool),
    str: (plugin.Str, str),
}
_NAMED = (typing.Literal, typing.Annotated)
"""Types of options that are one of several names: of a list, or of a registry."""


def options_of(command):
    """List the options of a command of aam that are parameters of its action."""
    return [
        spec
        for spec in specs(find(command))
        if spec.role == "value" and spec.field not in _LEFT_OUT and _types(spec.type)
    ]


def parameters(command):
    """Return the QIIME 2 type of each parameter of a command."""
    return {spec.field: _qiime_type(spec.type) for spec in options_of(command)}


def descriptions(command):
    """Return the help text of each parameter of a command."""
    return {spec.field: spec.help for spec in options_of(command)}


def takes_options(command):
    """Decorate an action: its `**options` become one parameter for each option of the command."""

    def decorate(function):
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [
            inspect.Parameter(
                spec.field,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=_default(spec.default),
                annotation=_view_type(spec.type),
            )
            for spec in options_of(command)
        ]
        function.__signature__ = signature.replace(parameters=own + added)
        function.__annotations__ |= {each.name: each.annotation for each in added}
        return function

    return decorate


def _default(value):
    """Return a default as QIIME 2 takes it: a list has a member or is None."""
    return (list(value) or None) if isinstance(value, tuple) else value


def _types(kind):
    """Return the alternatives of a type without None and paths."""
    if typing.get_origin(kind) in (None, *_NAMED, tuple):
        choices = (kind,)
    else:
        choices = typing.get_args(kind)
    return [choice for choice in choices if choice not in (type(None), Path)]


def _qiime_type(kind):
    found = None
    for each in _types(kind):
        if typing.get_origin(each) is tuple:
            one = plugin.List[_qiime_type(typing.get_args(each)[0])]
        elif typing.get_origin(each) in _NAMED:
            values = alternatives(each)
            numbers = [value for value in values if not isinstance(value, str)]
            one = plugin.Int if numbers else plugin.Str % plugin.Choices(*values)
        else:
            one = _PLAIN[each][0]
        found = one if found is None else found | one
    return found


def _view_type(kind):
    (first, *_) = _types(kind)
    return str if typing.get_origin(first) else _PLAIN[first][1]
