"""Made-up parts of an acceptance: right, wrong, crashing, hanging, filling the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from aam.acceptance.part import AcceptancePart, Context, Evaluation, Measurement, NotPossible, aam
from aam.acceptance.result import Values

SLEEP = "import time; time.sleep(600)  # "


def right(context: Context) -> Measurement:
    print("what a library prints")
    return Measurement({"value": 2.0, "rates": {"speed": 10.0}}, {"value": 2.0})


def wrong(context: Context) -> Measurement:
    return Measurement({"value": 3.0, "rates": {}}, {"value": 2.0})


def unlike_its_schema(context: Context) -> Measurement:
    return Measurement({"value": "many"})


def crash(context: Context) -> Measurement:
    os.kill(os.getpid(), signal.SIGSEGV)
    return Measurement({})


def bug(context: Context) -> Measurement:
    raise RuntimeError("a bug in the part")


def hang(context: Context) -> Measurement:
    """As a GPU that hangs: SIGTERM changes nothing, and a child has a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = SLEEP + str(context.folder)
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    time.sleep(600)
    return Measurement({})


def no_gpu(context: Context) -> Measurement:
    raise NotPossible("There is no GPU.")


def no_tool(context: Context) -> Measurement:
    subprocess.run(["no-such-profiler"], check=True)
    return Measurement({})


def no_study(context: Context) -> Measurement:
    aam(context, "inspect", context.folder / "absent.biom")
    return Measurement({})


def fill_disk(context: Context) -> Measurement:
    with (context.folder / "large").open("wb") as stream:
        while True:
            stream.write(bytes(1 << 20))
            stream.flush()


def evaluate(measured: Values, expected: Values) -> Evaluation:
    if measured["value"] != expected["value"]:
        return Evaluation("wrong", f"{measured['value']} instead of {expected['value']}.")
    return Evaluation("as predicted", "Equal.")


def part(measure: object, limit: float = 60.0) -> AcceptancePart:
    shape = {"value": float, "rates?": {str: float}}
    return AcceptancePart("made up", limit, measure, evaluate, shape)  # type: ignore[arg-type]
