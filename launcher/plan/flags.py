"""Options that the plan adds to a command: for known faults of the stack, and for `--gpus N`."""

from __future__ import annotations

from collections.abc import Sequence

from aam.contract.errors import UsageError
from launcher.findings import Finding
from launcher.host.facts import Gpu
from launcher.plan.catalog import StackFault
from launcher.plan.decision import Decision
from launcher.plan.request import Request, options_of

GPUS = "--gpus"
STRATEGIES = ("--distributed", "--fsdp", "--data-parallel")


def required(
    request: Request, faults: Sequence[StackFault]
) -> tuple[list[str], list[Decision], list[Finding]]:
    """Return the arguments to add to a command, the decisions, and warnings.

    Options that the user set are kept, with a warning if the fault concerns them.
    """
    argv: list[str] = []
    decisions: list[Decision] = []
    findings: list[Finding] = []
    known = options_of(request.command)
    for fault in faults:
        flag, *values = fault.flags
        positive = flag if flag in known else "--" + flag.removeprefix("--no-")
        if positive not in known:
            continue
        setting = last_setting(request, positive)
        if setting is None:
            argv += fault.flags
            why = f"{fault.reason} ({fault.source})"
            decisions.append(Decision("flag", " ".join(fault.flags), why, fault.known_from))
        elif setting != [flag, *values]:
            remedy = f"{' '.join(fault.flags)} is what it needs"
            findings.append(
                Finding("warning", "A choice that is known to go wrong here",
                        f"{' '.join(setting)}: {fault.reason}", remedy)
            )  # fmt: skip
    return argv, decisions, findings


def last_setting(request: Request, flag: str) -> list[str] | None:
    """Return the last arguments that set `flag`, in the usual spelling, or None."""
    setting = None
    argv = request.argv
    for place, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        as_arguments = name.replace("_", "-")
        if as_arguments == flag or as_arguments == "--no-" + flag[2:]:
            following = argv[place + 1 : place + 2]
            plain = [w for w in following if not w.startswith("-")]
            setting = [as_arguments, *([value] if equals else plain)]
    return setting


def shares(argv: Sequence[str]) -> bool:
    """Return whether a command names a strategy for several processes."""
    return any(argument.replace("_", "-") in STRATEGIES for argument in argv)


def processes(request: Request, gpus: Sequence[Gpu]) -> tuple[list[str], list[Decision]]:
    """Return the arguments to add for `--gpus`, and the decision.

    Each process takes one of the GPUs that are used; without any each takes some cores, which is
    how several processes are tried on a laptop.

    Raises:
        UsageError: not a number, more than there are GPUs, or a command that is one process.
    """
    if GPUS not in request.launcher_options:
        return [], []
    text = request.launcher_options[GPUS][-1]
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
    argv = ["--processes", text]
    argv += [] if shares(request.argv) else ["--distributed"]
    why = "one process for each GPU" if gpus else "there is no GPU; they share the cores"
    return argv, [Decision("processes", text, why, f"command line, {GPUS}")]
