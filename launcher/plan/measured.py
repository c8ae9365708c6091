"""What a measured verdict asks for, and where it disagrees with the catalog. Pure.

`aam check` writes the verdict (see `aam.stack.verdict`, whose words these are); here it is read as
plain data. The catalog's faults are what is believed until something was measured; then the
measurement counts, and a disagreement is reported with both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aam.options.frozen import dataclass
from launcher.plan.catalog import Fault
from launcher.plan.decision import Decision, Finding

VARIABLE = "AAM_VERDICT"
"""The variable that hands a verdict to `aam`."""

FORMAT = 1
MEASUREMENT = "measurement"
ATTENTION = "--attn-implementation"
CHECKPOINTING = "--no-gradient-checkpointing"
REPLACEMENTS = ("mem_efficient", "flash", "math")
"""Backends that may stand in for torch's own choice, the fused ones first."""
BAD = ("wrong", "crashed")
UNUSABLE = ("absent", "failed", "memory")


@dataclass(frozen=True)
class Key:
    """What a verdict is for; another value of any of these makes it worthless.

    Attributes:
        image: digest of the image; "file:..." of a file without one, "native:..." without an image.
        arch: of the GPUs.
        driver: version of their kernel driver; "kernel ..." for one that came with the kernel.
        aam: version of the program.
    """

    image: str
    arch: str
    driver: str
    aam: str

    def plain(self) -> dict[str, str]:
        """Return it as the document of a verdict holds it."""
        return {"image": self.image, "arch": self.arch, "driver": self.driver, "aam": self.aam}

    def __str__(self) -> str:
        image = self.image if len(self.image) < 30 else f"{self.image[:19]}..."
        return f"{self.arch}, driver {self.driver}, {image}, aam {self.aam}"


@dataclass(frozen=True)
class Measured:
    """A verdict that was found or made, or why there is none.

    Attributes:
        document: the verdict; None if there is none.
        where: its file, or who made it.
        absent: why there is none.
        findings: what has to be said about stored verdicts that were not used.
    """

    document: Mapping[str, Any] | None = None
    where: str = ""
    absent: str = ""
    findings: tuple[Finding, ...] = ()


def problem(document: Any) -> str | None:
    """Say why a document is no verdict; None if it is one."""
    if not isinstance(document, dict):
        return "it is no verdict"
    if document.get("format") != FORMAT:
        return f"it has format {document.get('format')}, not {FORMAT}"
    cases, key = document.get("cases"), document.get("key")
    wanted = ("backend", "dtype", "mask", "outcome")
    whole = isinstance(cases, list) and cases and all(
        isinstance(case, dict) and all(isinstance(case.get(name), str) for name in wanted)
        for case in cases
    )  # fmt: skip
    if not whole or not isinstance(document.get("made"), str):
        return "it is damaged"
    parts = ("image", "arch", "driver", "aam")
    if not isinstance(key, dict) or set(key) != set(parts):
        return "it does not say what it is for"
    return None


def wanted(words: Sequence[str]) -> tuple[str, ...]:
    """Return the dtypes that a command computes in, by its --mixed-precision."""
    given = "none"
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == "--mixed-precision":
            given = value if equals else "".join(words[place + 1 : place + 2])
    return {"none": ("fp32",), "auto": ("fp32", "bf16")}.get(given, ("fp32", given))


def outcomes(
    document: Mapping[str, Any], dtypes: Iterable[str], recomputed: bool = False
) -> dict[str, str]:
    """Return for each backend one word: wrong, absent, right, or right without masks."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for case in document["cases"]:
        if case["dtype"] in dtypes and (case["mask"] == "recomputed") == recomputed:
            found.setdefault(case["backend"], []).append(case)
    return {name: _word(cases) for name, cases in found.items()}


def _word(cases: Sequence[Mapping[str, Any]]) -> str:
    if any(case["outcome"] in BAD for case in cases):
        return "wrong"
    if not any(case["outcome"] in UNUSABLE for case in cases):
        return "right"
    plain = [case["outcome"] for case in cases if case["mask"] == "none"]
    return "right without masks" if plain and not set(plain) & set(UNUSABLE) else "absent"


def summary(document: Mapping[str, Any]) -> str:
    """Say what a verdict says of each backend."""
    dtypes = {case["dtype"] for case in document["cases"]}
    told = []
    for name, word in outcomes(document, dtypes).items():
        faults = {case.get("fault"): None for case in document["cases"]
                  if case["backend"] == name and case["outcome"] in BAD
                  and case["mask"] != "recomputed"}  # fmt: skip
        named = f" ({', '.join(filter(None, faults))})" if any(faults) else ""
        told.append(f"{name} {'cannot run' if word == 'absent' else word}{named}")
    return ", ".join(told)


def settle(
    faults: Sequence[Fault], measured: Measured, words: Sequence[str]
) -> tuple[list[Fault], list[Decision], list[Finding]]:
    """Return the faults to heed, what is known, and where catalog and measurement disagree.

    Args:
        faults: of the catalog, for this stack.
        measured: the verdict, if there is one.
        words: the options of the command.
    """
    document = measured.document
    if document is None:
        flags = ", ".join(" ".join(fault.flags) for fault in faults)
        belief = f"asks for {flags}" if faults else "knows no fault of this stack"
        why = f"{measured.absent}; the catalog {belief}"
        said = Decision("verdict", "not yet measured", why, "catalog")
        return list(faults), [said], list(measured.findings)
    found = _asked_for(document, wanted(words))
    settled: list[Fault] = []
    findings = list(measured.findings)
    for name in (ATTENTION, CHECKPOINTING):
        prior = [fault for fault in faults if fault.flags[0] == name]
        asked = [fault for fault in found if fault.flags[0] == name]
        if name == CHECKPOINTING and not _tried(document):
            settled += prior  # nobody measured it, so the catalog is all that is known
            continue
        settled += asked
        if bool(prior) != bool(asked):
            findings.append(_disagreement(prior, asked, document))
    settled += [fault for fault in faults if fault.flags[0] not in (ATTENTION, CHECKPOINTING)]
    why = f"measured {document['made']} for {Key(**document['key'])}"
    return settled, [Decision("verdict", summary(document), why, measured.where)], findings


def _asked_for(document: Mapping[str, Any], dtypes: Sequence[str]) -> list[Fault]:
    """Return what the measurement asks for, as faults like those of the catalog."""
    source = f"measured {document['made']}"
    backends = outcomes(document, dtypes)
    found = []
    chosen = "auto"
    if backends.get("auto") == "wrong":
        chosen = next((name for name in REPLACEMENTS if backends.get(name) == "right"), "math")
        reason = f"torch's own choice computes attention wrong here: {summary(document)}"
        found.append(Fault("measured", "", (), (ATTENTION, chosen), reason, source, MEASUREMENT))
    if outcomes(document, dtypes, recomputed=True).get(chosen) == "wrong":
        reason = f"recomputation under gradient checkpointing fails here with {chosen}"
        found.append(Fault("recomputation", "", (), (CHECKPOINTING,), reason, source, MEASUREMENT))
    return found


def _tried(document: Mapping[str, Any]) -> bool:
    return any(case["mask"] == "recomputed" for case in document["cases"])


def _disagreement(
    prior: Sequence[Fault], asked: Sequence[Fault], document: Mapping[str, Any]
) -> Finding:
    cause = "Catalog and measurement disagree"
    remedy = "the measurement counts; --recheck makes it again"
    if prior:
        catalog = f"the catalog says that {prior[0].reason} ({prior[0].source})"
        evidence = f"{catalog}; measured {document['made']}: {summary(document)}"
    else:
        evidence = f"the catalog knows no such fault; {asked[0].reason} ({asked[0].source})"
    return Finding("warning", cause, evidence, remedy)


def variable(document: Mapping[str, Any]) -> str:
    """Return a verdict as `aam` reads it from a variable: one case for each mask, no figures."""
    worst: dict[tuple[str, ...], dict[str, Any]] = {}
    for case in document["cases"]:
        place = (case["backend"], case["dtype"], case["mask"])
        kept = {name: case[name] for name in ("backend", "dtype", "mask", "outcome")}
        if case.get("fault"):
            kept["fault"] = case["fault"]
        if place not in worst or _gravity(case["outcome"]) > _gravity(worst[place]["outcome"]):
            worst[place] = kept
    short = {**document, "cases": list(worst.values()), "costs": []}
    return json.dumps(short, separators=(",", ":"), ensure_ascii=False)


def _gravity(outcome: str) -> int:
    order = ("right", "harmless", *UNUSABLE, *BAD)
    return order.index(outcome) if outcome in order else len(order)
