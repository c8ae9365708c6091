"""Options that the plan adds to a command: for known faults of the stack, and for `--gpus N`."""

from __future__ import annotations

from collections.abc import Sequence

from aam.contract.errors import UsageError
from aam.contract.options import arguments, options_of, parse_known
from launcher.findings import Finding
from launcher.host.facts import Gpu
from launcher.plan.catalog import StackFault
from launcher.plan.decision import Decision
from launcher.plan.request import Request

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
    options = options_of(request.command)
    for fault in faults:
        known, _ = parse_known(options, fault.flags)
        needed = " ".join(fault.flags)
        for flag, value in known.items():
            if flag not in request.given:
                argv += fault.flags
                why = f"{fault.reason} ({fault.source})"
                decisions.append(Decision("flag", needed, why, fault.known_from))
            elif request.given[flag] != value:
                given = " ".join(arguments(options, {flag: request.given[flag]}))
                cause = "A choice that is known to go wrong here"
                evidence = f"{given}: {fault.reason}"
                findings.append(Finding("warning", cause, evidence, f"{needed} is what it needs"))
    return argv, decisions, findings


def processes(request: Request, gpus: Sequence[Gpu]) -> tuple[list[str], list[Decision]]:
    """Return the arguments to add for `--gpus`, and the decision.

    Each process takes one of the GPUs that are used; without any each takes some cores, which is
    how several processes are tried on a laptop.

    Raises:
        UsageError: more than there are GPUs, or a command that is one process.
    """
    number = request.launcher_options.get("--gpus")
    if number is None:
        return [], []
    if request.option("--processes") is None:
        evidence = f"`{request.command}` is one process"
        raise UsageError("--gpus is for commands that train", evidence, "leave it out")
    if gpus and number > len(gpus):
        evidence = f"--gpus {number}, {len(gpus)} x {gpus[0].product}"
        raise UsageError("More GPUs than there are", evidence, "ask for fewer, or submit a job")
    if number == 1:
        return [], []
    argv = ["--processes", str(number)]
    argv += [] if any(request.value(flag) for flag in STRATEGIES) else ["--distributed"]
    why = "one process for each GPU" if gpus else "there is no GPU; they share the cores"
    return argv, [Decision("processes", str(number), why, "command line, --gpus")]
