"""Speed of making training batches: `python benchmarks/data_path.py [CHECKOUT ...] [--store PATH]`.

Prints samples per CPU-second of one thread, for a simulated study (1,100 samples of about 185 of
2,000 ASVs) or for a store of `aam prepare`, without and with masked nucleotides and UniFrac. With
the folders of several checkouts of this repository, they are measured in turns; the best of three
rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from aam.contract.options.groups import Metric

ROUNDS = 3
CASES: dict[str, tuple[float, Metric | None]] = {
    "reads": (0.0, None),
    "masks": (0.15, None),
    "masks, UniFrac": (0.15, "unweighted"),
}


def main() -> None:
    """Measure each checkout in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkouts", type=Path, nargs="*", default=[here])
    parser.add_argument("--store", type=Path, help="store of aam prepare")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.store, options.batch_sizes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or prepare(Path(folder))
        best: dict[Path, dict[str, float]] = {path: {} for path in options.checkouts}
        for _ in range(ROUNDS):
            for path, rates in best.items():
                for name, rate in in_checkout(path, store, options.batch_sizes).items():
                    rates[name] = max(rate, rates.get(name, 0.0))
    table = Table(title="samples per CPU-second")
    table.add_column("batch")
    for number, path in enumerate(best):
        table.add_column(f"{number + 1}: {path.name}", justify="right")
    for name in next(iter(best.values())):
        table.add_row(name, *(f"{rates[name]:,.0f}" for rates in best.values()))
    Console(width=110).print(table)


def prepare(folder: Path) -> Path:
    """Simulate a study and prepare it; return the store."""
    from aam.cli import main as aam

    study, store = folder / "study", folder / "store"
    size = "--samples 1100 --asvs 2000 --richness 185 --depth 10000 --subjects 40"
    assert aam(["example", "--output-dir", str(study), *size.split()]) == 0
    paths = ("--table", study / "table.biom", "--tree", study / "tree.nwk", "--output", store)
    assert aam(["prepare", *map(str, paths)]) == 0
    return store


def in_checkout(checkout: Path, store: Path, sizes: list[int]) -> dict[str, float]:
    """Return the rates of the code in another checkout, in a new process of one thread."""
    argv = [sys.executable, __file__, "--one", "--store", str(store), "--batch-sizes"]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv + [str(size) for size in sizes],
        env=environment, cwd=checkout, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    rates: dict[str, float] = json.loads(done.stdout)
    return rates


def measure(store: Path, sizes: list[int]) -> dict[str, float]:
    """Return samples per CPU-second by case and batch size."""
    import numpy as np

    from aam.contract.options.groups import PhylogenyOptions, TableOptions
    from aam.data.study import load_study
    from aam.network.batches import BatchPlan, make_batch

    study = load_study(TableOptions(table=store), PhylogenyOptions())
    depth = int(np.quantile(study.reads, 0.05))
    rows = np.random.default_rng(0).permutation(np.flatnonzero(study.reads >= depth))
    rates = {}
    for size in sizes:
        for name, (ratio, metric) in CASES.items():
            plan = BatchPlan(1, depth, 1024, mask_ratio=ratio, metric=metric)
            make_batch(study, plan, rows[:8])
            began = time.process_time()
            batch = make_batch(study, plan, rows[:size], 1, 1)
            seconds = time.process_time() - began
            label = f"{size} samples, {len(batch.asvs_U):,} ASVs: {name}"
            rates[label] = len(batch.rows_B) / seconds
    return rates


if __name__ == "__main__":
    main()
