"""Several processes in one place: what `--gpus N` adds to a command."""

from __future__ import annotations

from collections.abc import Sequence

from aam.contract.errors import UsageError
from launcher.host.facts import Gpu
from launcher.plan.decision import Decision
from launcher.plan.request import Request, options_of

GPUS = "--gpus"
STRATEGIES = ("--distributed", "--fsdp", "--data-parallel")


def shares(words: Sequence[str]) -> bool:
    """Whether a strategy for several processes is among the words of a command."""
    return any(word.replace("_", "-") in STRATEGIES for word in words)


def processes(request: Request, gpus: Sequence[Gpu]) -> tuple[list[str], list[Decision]]:
    """Return the words to add for `--gpus`, and the decision.

    Each process takes one of the GPUs that are used; without any each takes some cores, which is
    how several processes are tried on a laptop.

    Raises:
        UsageError: not a number, more than there are GPUs, or a command that is one process.
    """
    if GPUS not in request.own:
        return [], []
    text = request.own[GPUS][-1]
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(
            "A value that does not suit its option", f"--gpus {text}", "give 1 or more"
        )
    if "--processes" not in options_of(request.command):
        evidence = f"`{request.command}` is one process"
        raise UsageError("--gpus is for commands that train", evidence, "leave it out")
    number = int(text)
    if gpus and number > len(gpus):
        evidence = f"--gpus {number}, {len(gpus)} x {gpus[0].product}"
        raise UsageError("More GPUs than there are", evidence, "ask for fewer, or submit a job")
    if number == 1:
        return [], []
    words = ["--processes", text]
    words += [] if shares(request.words) else ["--distributed"]
    why = "one process for each GPU" if gpus else "there is no GPU; they share the cores"
    return words, [Decision("processes", text, why, f"command line, {GPUS}")]
