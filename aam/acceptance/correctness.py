"""Parts `check`, `attention` and `golden`: whether this stack computes right, and attention's cost.

They run `aam check` and `aam golden`, whose tolerances decide; nothing is measured here.
"""

from __future__ import annotations

import json
import os
from typing import Any

from aam.acceptance.part import Context, Evaluation, Measurement, NotPossible, PartFailure, aam
from aam.acceptance.result import Values
from aam.contract.errors import first_few
from aam.contract.gpus import one_gpu
from aam.golden.folder import RECORD
from aam.numerics.check_report import CheckReport, from_json, summary, worst

CHECK = {
    "devices": [
        {
            "name": str,
            "quick": bool,
            "verdict": str,
            "backends": {str: str},
            "faults": {str: list[str]},
            "overhead?": (None, int),
            "failed?": str,
        }
    ]
}
"""Schema of the measured values of the part `check`, for each GPU.

`backends` has the worst outcome of each backend (`aam.numerics.check_report.Outcome`), `faults` the
names of its faults; `overhead` are the bytes of a GPU that driver and libraries take.
"""

ATTENTION = {
    "costs": [
        {
            "backend": str,
            "dtype": str,
            "mask": str,
            "shape": str,
            "milliseconds": float,
            "peak_bytes?": (None, int),
        }
    ],
    "rates": {str: float},
}
"""Schema of the measured values of the part `attention`; a cost is that of both passes."""

GOLDEN = {
    "comparisons": [
        {"with": str, "precision": str, "agree": bool, "verdict": str, "largest": float}
    ]
}
"""Schema of the measured values of the part `golden`.

`largest` is the largest difference of a stage over the rounding that is allowed.
"""


def measure_check(context: Context) -> Measurement:
    """Run `aam check` on each GPU by itself; quick on a CPU, whose kernels are few."""
    devices = []
    for number in range(max(context.gpus, 1)):
        variables = one_gpu(os.environ, number) if context.gpu else {}
        quick = ("--quick",) if context.small else ()
        try:
            text = aam(
                context, "check", "--device", context.device, "--json", *quick,
                accept=(0, 1), variables=variables,
            )  # fmt: skip
        except PartFailure as failure:  # one GPU that hangs leaves the others
            devices.append(device_result(f"GPU {number}", None) | {"failed": str(failure)})
            continue
        (context.folder / f"report-{number}.json").write_text(text)
        report = from_json(text)
        name = f"GPU {number}" if context.gpu else "CPU"
        devices.append(device_result(f"{name}, {report.identity['device']}", report))
    return Measurement({"devices": devices})


def device_result(name: str, report: CheckReport | None) -> dict[str, Any]:
    """Return the result of a device, an entry of `CHECK`; without a report it has no backends."""
    if report is None:
        return {"name": name, "quick": False, "verdict": "", "backends": {}, "faults": {}}
    backends = report.backends
    faults = {one: list(report.faults(one, report.dtypes)) for one in backends}
    return {
        "name": name,
        "quick": report.quick,
        "verdict": summary(report),
        "backends": {one: worst(report.of(one, report.dtypes)) for one in backends},
        "faults": {one: names for one, names in faults.items() if names},
        "overhead": report.overhead,
    }


def evaluate_check(measured: Values, expected: Values) -> Evaluation:
    """Name the devices with a wrong backend, and those that give no result."""
    devices = measured["devices"]
    silent = [f"{one['name']}: {one['failed']}" for one in devices if one.get("failed")]
    bad = {
        one["name"]: [
            b for b, outcome in one["backends"].items() if outcome in ("wrong", "crashed")
        ]
        for one in devices
    }
    if silent:
        return Evaluation("wrong", f"{first_few(silent)} gave no result.")
    named = [
        f"{name}: {', '.join(_fault(devices, name, backend) for backend in backends)}"
        for name, backends in bad.items()
        if backends
    ]
    if named and len(named) < len(devices) and len({one["verdict"] for one in devices}) > 1:
        return Evaluation("wrong", f"{'; '.join(named)} wrong, and not on the other devices.")
    if named:
        return Evaluation("wrong", f"{'; '.join(named)} wrong.")
    return Evaluation("as predicted", f"{devices[0]['verdict']}.")


def _fault(devices: list[dict[str, Any]], name: str, backend: str) -> str:
    faults = next(one["faults"] for one in devices if one["name"] == name).get(backend, [])
    return f"{backend} ({', '.join(faults)})" if faults else str(backend)


def measure_attention(context: Context) -> Measurement:
    """Return time and memory of each backend, from the report of `check` or a check of its own."""
    file = context.of("check") / "report-0.json"
    report = from_json(file.read_text()) if file.is_file() else None
    if report is None or report.quick:
        text = aam(context, "check", "--device", context.device, "--json", accept=(0, 1))
        report = from_json(text)
    costs = [vars(cost) for cost in report.costs]
    rates = {
        f"{cost.backend}, {cost.dtype}, {cost.shape}{', masked' if cost.mask != 'none' else ''}":
            1000 / cost.milliseconds
        for cost in report.costs if cost.milliseconds
    }  # fmt: skip
    if not costs:
        raise NotPossible("No backend was timed.")
    return Measurement({"costs": costs, "rates": rates})


def evaluate_attention(measured: Values, expected: Values) -> Evaluation:
    """Name the fastest backend of the sample encoder for each mask, in fp32."""
    fastest = []
    for mask, title in (("none", "without masks"), ("each", "with masks")):
        costs = [
            cost for cost in measured["costs"]
            if (cost["mask"], cost["dtype"], cost["shape"]) == (mask, "fp32", "sample encoder")
        ]  # fmt: skip
        if costs:
            best = min(costs, key=lambda cost: cost["milliseconds"])
            fastest.append(f"{best['backend']} {title} ({best['milliseconds']:.1f} ms)")
    return Evaluation("as predicted", f"Fastest in fp32: {', '.join(fastest)}.")


def measure_golden(context: Context) -> Measurement:
    """Compare the golden case with that of the CPU and with those of the other images."""
    place = context.shared / "golden"
    own, cpu = place / f"{context.run}-{context.device}", place / f"{context.run}-cpu"
    for folder, device in ((cpu, "cpu"), (own, context.device)):
        if not (folder / RECORD).is_file():  # written last
            aam(context, "golden", "generate", folder, "--device", device)
    others = sorted(
        path.parent for path in place.glob(f"*/{RECORD}") if path.parent not in (own, cpu)
    )
    comparisons = []
    for folder in (cpu, *others):
        for precision in ("none", "auto") if context.gpu and folder == cpu else ("none",):
            text = aam(
                context, "golden", "compare", folder, "--json", "--device", context.device,
                "--mixed-precision", precision, accept=(0, 1),
            )  # fmt: skip
            found = json.loads(text)
            name = "the CPU" if folder == cpu else folder.name
            comparisons.append(
                {
                    "with": name,
                    "precision": found["here"]["precision"],
                    "agree": found["agree"],
                    "verdict": found["verdict"],
                    "largest": _largest(found["rows"]),
                }
            )
    return Measurement({"comparisons": comparisons})


def _largest(rows: list[dict[str, Any]]) -> float:
    """Return the largest difference of a stage over what is allowed; 1e9 if one is not finite."""
    shares = [
        (1e9 if value is None else value / row["allowed"] if row["allowed"] else 0.0)
        for row in rows for value in row["difference"].values()
    ]  # fmt: skip
    return max(shares, default=0.0)


def evaluate_golden(measured: Values, expected: Values) -> Evaluation:
    """Name the comparisons that differ by more than rounding."""
    found = measured["comparisons"]
    bad = [
        f"{one['with']} ({one['precision']}): {one['verdict']}" for one in found if not one["agree"]
    ]
    if bad:
        return Evaluation("wrong", f"Differs from {'; '.join(bad)}")
    names = ", ".join(dict.fromkeys(one["with"] for one in found))
    most = max(one["largest"] for one in found)
    return Evaluation("as predicted", f"Equal to {names}; {most:.0%} of the allowed rounding.")
