"""The program `aam`: found by AAM_EXECUTABLE or on PATH, run as a subprocess."""

import os
import shutil
import subprocess
import sys
from collections import deque

from aam import __version__
from aam.contract.options import specs
from aam.contract.options.commands import find

_REMEDY = (
    "Install AAM with the extra `model` in its own environment, and set AAM_EXECUTABLE to its "
    "`aam` (or to `aam-launch`)."
)


def aam(command, options=None, **files):
    """Run a command of aam and wait for it; its messages go to standard error.

    Args:
        command: such as "train".
        options: values of options by field name; those that are None or the default are left out.
        files: paths and other values by field name; None is left out.

    Raises:
        RuntimeError: there is no such program, it is of another version, or it failed: with its
            own message.
    """
    program = _executable()
    arguments = [program, *command.split()]
    for spec in specs(find(command)):
        value = {**(options or {}), **files}.get(spec.field)
        if value is None or (spec.field not in files and value == spec.default):
            continue
        if isinstance(value, bool):
            arguments.append(spec.flag if value else spec.flag.replace("--", "--no-", 1))
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            arguments += [spec.flag, *map(str, values)]
    last = deque(maxlen=20)
    print("Running:", *arguments, file=sys.stderr)
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, errors="replace") as run:
        for line in run.stderr:
            print(line, end="", file=sys.stderr)
            last.append(line)
    if run.returncode:
        sentences = [line for line in last if line.startswith("aam: ")] or list(last)
        raise RuntimeError(
            "".join(sentences).strip() or f"`aam {command}` failed with status {run.returncode}"
        )


def _executable():
    named = os.environ.get("AAM_EXECUTABLE")
    program = shutil.which(named or "aam")
    if program is None:
        what = (
            f"AAM_EXECUTABLE is '{named}', which is no program" if named else "aam is not on PATH"
        )
        raise RuntimeError(f"{what}. {_REMEDY}")
    found = subprocess.run([program, "--version"], capture_output=True, text=True)
    version = found.stdout.strip().rpartition(" ")[2]
    if version != __version__:
        raise RuntimeError(
            f"'{program}' is aam {version or 'of an unknown version'}, and q2-aam was installed "
            f"with the options of aam {__version__}. Install the same version of both."
        )
    return program
