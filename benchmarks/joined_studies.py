"""Memory and time of many studies.

    python -m benchmarks.joined_studies FOLDER [--studies 20] [--samples 500] [--asvs 100000]

The studies have so many samples each, and ASVs of 150 nt together. Every study has half of the 4 %
of the ASVs that may be in all studies; each of the others is in one study. A sample has 200 ASVs,
half of them of each kind; cases have more of some common ones. Two commands, each a process of its
own with one thread: `aam prepare`, which joins the tables, and `aam train --study-column`, which
leaves every study out once, with its scores, explanations and report. For each the CPU-seconds and
the peak of memory, the pages of mapped files included.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np

from aam.data.simulation import evolve_dna, yule_tree

LENGTH, RICHNESS = 150, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--asvs", type=int, default=100_000)
    arguments = parser.parse_args()
    folder = arguments.folder
    names = [f"s{number:02d}" for number in range(arguments.studies)]
    if not (folder / names[-1] / "metadata.tsv").exists():
        make(folder, names, arguments.samples, arguments.asvs)
    given: list[str] = ["--studies", ",".join(names)]
    for name in names:
        given += ["--table", str(folder / name / "table.biom")]
        given += ["--metadata", str(folder / name / "metadata.tsv")]
    store = str(folder / "joined.aam")
    measure("prepare", *given, "--output", store, "--overwrite")
    target = ["--metadata", store, "--metadata-column", "disease", "--classifier"]
    output = ["--study-column", "study", "--output-dir", str(folder / "run"), "--overwrite"]
    measure("train", "--table", store, *target, *output)


def measure(*arguments: str) -> None:
    """Run a command of `aam` and print its cost."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "aam.cli", *arguments], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{arguments[0]}: {seconds:.0f} CPU-seconds, {time.perf_counter() - began:.0f} seconds, "
        f"peak of this command or an earlier one {after.ru_maxrss / 2**10:.0f} MiB",
        flush=True,
    )


def make(folder: Path, names: list[str], samples: int, number_of_asvs: int) -> None:
    """Write table.biom and metadata.tsv of each study."""
    rng = np.random.default_rng(11)
    dna = np.array(evolve_dna(yule_tree(number_of_asvs, rng), LENGTH, rng))
    order = rng.permutation(number_of_asvs)
    number_common = number_of_asvs // 25
    common, own = order[:number_common], np.array_split(order[number_common:], len(names))
    of_cases = common[: number_common // 10]
    text = h5py.string_dtype()
    for number, (name, of_study) in enumerate(zip(names, own, strict=True)):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        known = rng.choice(common, number_common // 2, replace=False)
        asvs = np.sort(np.concatenate([known, of_study]))
        cases = rng.random(samples) < 0.3 + 0.4 * number / len(names)
        # ASVs with the smallest keys are in the sample; those of the disease have smaller ones.
        weight = np.where(np.isin(known, of_cases), 3.0, 1.0)
        half = RICHNESS // 2
        rows = []
        for is_case in cases:
            keys = rng.exponential(size=len(known)) / (weight if is_case else 1.0)
            chosen = known[np.argpartition(keys, half)[:half]]
            others = rng.choice(of_study, half, replace=False)
            rows.append(np.searchsorted(asvs, np.sort(np.concatenate([chosen, others]))))
        reads = 1 + rng.lognormal(2.5, 1.2, size=samples * RICHNESS).astype(np.int64)
        ids = [f"{name}.{row:03d}" for row in range(samples)]
        with h5py.File(place / "table.biom", "w") as file:
            file.attrs["format-version"] = (2, 1)
            file.attrs["shape"] = (len(asvs), samples)
            file.create_dataset("sample/ids", data=ids, dtype=text)
            file.create_dataset("observation/ids", data=dna[asvs].tolist(), dtype=text)
            matrix = file.create_group("sample/matrix")
            matrix.create_dataset("data", data=reads.astype(np.float64), compression="gzip")
            columns = np.concatenate(rows).astype(np.int32)
            matrix.create_dataset("indices", data=columns, compression="gzip")
            ends = np.arange(samples + 1, dtype=np.int32) * RICHNESS
            matrix.create_dataset("indptr", data=ends)
        lines = [
            f"{row}\t{'case' if case else 'control'}" for row, case in zip(ids, cases, strict=True)
        ]
        (place / "metadata.tsv").write_text("\n".join(["sample-id\tdisease", *lines]) + "\n")


if __name__ == "__main__":
    main()
