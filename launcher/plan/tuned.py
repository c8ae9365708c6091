"""Options and variables that were measured as good on a GPU architecture (setting `tuned`). Pure.

    tuned:
      gfx942:
        options: {batch-size: 64, mixed-precision: bf16}
        env: {PYTORCH_HIP_ALLOC_CONF: "expandable_segments:True"}

`aam acceptance` writes such a file. They are defaults: what the command line, --config or a fault
of the stack sets has precedence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from aam.contract.errors import ConfigurationError
from aam.contract.options import arguments
from aam.contract.options.config_file import typed
from aam.contract.records import Entry
from aam.contract.suggestions import nearest
from launcher.findings import Decision
from launcher.plan.environment import Variable
from launcher.plan.request import Request
from launcher.plan.settings import VARIABLE, LaunchSettings, require_type

TUNABLE = ("batch-size", "asv-chunk", "gradient-checkpointing", "mixed-precision",
           "attn-implementation", "compile-model", "num-workers", "prefetch-factor",
           "cpu-threads")  # fmt: skip
"""Options that change time and memory; those that `aam tune` tries."""

OF_A_RUN = "--num-workers"
"""Commands with this option compute with the network on a study; others measure a stack."""


def tuned_for(request: Request, settings: LaunchSettings) -> tuple[Entry, ...]:
    """Return the setting of each layer, lowest first; nothing for a command that measures."""
    runs = request.option(OF_A_RUN) and not request.wrapped and request.uses_network
    return settings.tuned if runs else ()


def tuned_options(
    request: Request, tuned: Sequence[Entry], arch: str, taken: Collection[str]
) -> tuple[list[str], list[Decision]]:
    """Return the arguments to add to a command, and the decisions."""
    argv: list[str] = []
    decisions: list[Decision] = []
    for name, entry in _measured(tuned, arch, "options").items():
        name = name.replace("_", "-")
        _require_known(name, TUNABLE, f"tuned.{arch}.options", entry.where)
        spec = request.option(f"--{name}")
        if spec and not {spec.flag, f"--no-{name}"} & {*request.given, *taken}:
            added = arguments([spec], typed(spec, entry))
            argv += added
            decisions.append(Decision("flag", " ".join(added), _why(arch), entry.where))
    return argv, decisions


def tuned_variables(tuned: Sequence[Entry], arch: str) -> list[Variable]:
    """Return the variables of an architecture."""
    found = []
    for name, entry in _measured(tuned, arch, "env").items():
        require_type(f"tuned.{arch}.env.{name}", "text", entry.value, entry.where)
        if not VARIABLE.match(name):
            evidence = f"{name!r} of tuned.{arch}.env in {entry.where}"
            raise ConfigurationError("Not the name of a variable", evidence, "correct it")
        found.append(Variable(name, str(entry.value), _why(arch), entry.where))
    return found


def _why(arch: str) -> str:
    return f"measured as good on {arch}"


def _measured(tuned: Sequence[Entry], arch: str, part: str) -> dict[str, Entry]:
    """Return the options or the variables of an architecture by name; a later layer wins."""
    found: dict[str, Entry] = {}
    for layer in tuned:
        value, key = layer.value, "tuned"
        for name in (arch, part):
            value, key = value.get(name, {}), f"{key}.{name}"
            require_type(key, "mapping", value, layer.where)
            if name == arch:
                for given in value:
                    _require_known(given, ("options", "env"), key, layer.where)
        found |= {str(name): Entry(each, layer.where) for name, each in value.items()}
    return found


def _require_known(name: Any, known: Sequence[str], key: str, where: str) -> None:
    """Refuse a key that is not `known`."""
    if name not in known:
        remedy = nearest(str(name), known, f"known are {', '.join(known)}")
        raise ConfigurationError("An unknown key", f"'{name}' of {key} in {where}", remedy)
