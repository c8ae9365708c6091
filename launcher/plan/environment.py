"""Environment of a container: passed, removed and fixed variables, and cache folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from launcher.findings import REQUESTED, Decision
from launcher.gpus import VENDORS
from launcher.host.facts import EngineTraits
from launcher.plan.settings import LaunchSettings
from launcher.plan.visible_devices import visible_devices_variables

PASSED = ("SLURM_*", "SLURMD_*", "PMI*", "MASTER_ADDR", "MASTER_PORT",
          "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
          "TORCHELASTIC_*", "NCCL_*", "RCCL_*", "GLOO_*", "FI_*", "OMP_*", "MKL_NUM_THREADS",
          "HSA_*", "PYTORCH_*", "TORCH_*", "MIOPEN_*", "TZ", "TERM", "COLORTERM", "NO_COLOR",
          "COLUMNS", "AAM_*")  # fmt: skip
"""Patterns of variables that ranks, libraries and terminals need."""
NEVER = ("AAM_LAUNCH_*", "AAM_IMAGE_DIR", "SLURM_JWT")
"""Variables that no pattern lets in: settings of the launcher, and the user's token for Slurm."""
SECRET = re.compile(r"TOKEN(?!IZ)|SECRET|PASS|PW|CRED|AUTH|JWT|KEY", re.IGNORECASE)
"""Names of variables whose values are secrets, whatever pattern they match."""
CREDENTIALS = re.compile(r"://[^/\s]*:[^/\s]*@")  # user and password in a URL
LEAKS = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "VIRTUAL_ENV",
         "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT",
         *(name for vendor in VENDORS.values() for name in vendor.install_variables))  # fmt: skip
"""Variables that break programs in an image; `explain` lists those that are set."""
PROXIES = tuple(name for kind in ("http", "https", "ftp", "all", "no")
                for name in (f"{kind}_proxy", f"{kind.upper()}_PROXY"))  # fmt: skip
"""Variables that engines let in whatever their options; nothing in an image needs the network."""
CACHES = {
    "XDG_CACHE_HOME": "cache", "MIOPEN_USER_DB_PATH": "cache/miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "cache/miopen", "TRITON_CACHE_DIR": "cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "cache/inductor", "NUMBA_CACHE_DIR": "cache/numba",
    "MPLCONFIGDIR": "cache/matplotlib",
}  # fmt: skip
"""Variable -> folder below the private one; on a shared file system these caches get damaged."""
FIXED = {
    "PYTHONNOUSERSITE": ("1", "packages of ~/.local must not replace the image's"),
    "LC_ALL": ("C.UTF-8", "the host's locale may not exist in the image"),
    "TMPDIR": ("/tmp", "a folder of this job's own is mounted there"),
}
HARMLESS = (*PASSED, *FIXED, *CACHES, "HOME", "PYTHON*", "LD_LIBRARY_PATH")
"""Patterns of variables whose values `explain` and the record of a run show; no other value is."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of a program, with its reason and source, and the subject of its decision."""

    name: str
    value: str
    why: str
    source: str = "default"
    subject: str = "variable"

    @property
    def decision(self) -> Decision:
        """The decision to set it, without the value of a secret."""
        value = f"{self.name}={shown(self.name, self.value)}"
        return Decision(self.subject, value, self.why, self.source)


def container_variables(
    present: Mapping[str, str], settings: LaunchSettings, private: str
) -> tuple[dict[str, Variable], list[Decision]]:
    """Return the variables of a container by name, and decisions about those that are kept out."""
    variables = {name: Variable(name, value, why) for name, (value, why) in FIXED.items()}
    variables["HOME"] = Variable("HOME", f"{private}/home", "a private one, not the user's")
    why = "a cache of this user, job and node alone"
    variables |= {n: Variable(n, f"{private}/{folder}", why) for n, folder in CACHES.items()}
    patterns = (*PASSED, *settings.pass_env)
    why = "ranks, libraries or the terminal need it"
    for name in sorted(present):
        if matches(name, patterns) and not matches(name, NEVER) and name not in variables:
            variables[name] = Variable(name, present[name], why, "environment")
    kept_out = []
    for name, setting in settings.env.items():
        literal = present.get(name) if setting.value is None else setting.value
        if literal is not None:
            variables[name] = Variable(name, literal, REQUESTED, setting.source)
        else:
            why = f"{REQUESTED}, but not set here"
            kept_out.append(Decision("kept out", name, why, setting.source))
    why = "it would put the host's libraries or packages before the image's"
    kept_out += [Decision("kept out", name, why, "environment")
                 for name in LEAKS if present.get(name) and name not in variables]  # fmt: skip
    return variables, kept_out


def unset(present: Iterable[str], traits: EngineTraits) -> tuple[str, ...]:
    """Return the variables that must not reach an engine, so that the plan is all that counts."""
    hidden = (n for n in present if matches(n, traits.hidden) and not matches(n, traits.passed))
    return (*(name for name in present if name in PROXIES), *hidden)


def shown(name: str, value: str) -> str:
    """Return the value of a variable for output; "..." unless it is known to be harmless.

    >>> shown("WORD", "42"), shown("NCCL_DEBUG", "INFO"), shown("NCCL_X", "http://ada:42@host")
    ('...', 'INFO', '...')
    """
    harmless = matches(name, (*HARMLESS, *visible_devices_variables()))
    return value if harmless and not is_secret(name, value) else "..."


def is_secret(name: str, value: str) -> bool:
    """Return whether the name of a variable, or a password in its value, marks a secret."""
    return bool(SECRET.search(name) or CREDENTIALS.search(value))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of `patterns`.

    >>> matches("SLURM_JOB_ID", ["SLURM_*"]), matches("HOME", ["H"])
    (True, False)
    """
    return any(name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
               for pattern in patterns)  # fmt: skip
