"""How often different samples pass for one, and how many copies and repeated subjects are found.

    python benchmarks/identity.py ecam/table.biom oral/table.biom ravel/table.biom
    python benchmarks/identity.py --studies 200

Of each table: pairs of samples with equal reads and pairs that are alike, as they are and at a few
reads; and the part of its samples that is found in copies that are cut, relative, without rare
ASVs, or rarefied. Without tables, simulated pairs of studies whose subjects have equal names: the
part of the pairs that are one subject by `chance_of_names`, none or some of them being so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.console import as_library
from aam.contract.options.groups import TableOptions
from aam.data.identity import Abundances
from aam.data.sequences import hash_sequences
from aam.data.study import load_study

ASVS = 80


def main() -> None:
    """Print a row for each table, or for each simulated setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="*")
    parser.add_argument("--studies", type=int, default=200)
    arguments = parser.parse_args()
    for path in arguments.tables:
        with as_library():
            print(f"| {path.parent.name} | {' | '.join(row_of_table(path))} |", flush=True)
    if not arguments.tables:
        print("| subjects | repeated | similarity | one subject (p <= 0.01) |")
        print("|---|---|---|---|")
        for subjects in (6, 12, 40):
            for repeated in (0.0, 0.25, 0.65, 1.0):
                for noise in (0.5, 1.0, 2.0):
                    rng = np.random.default_rng([subjects, int(100 * repeated), int(10 * noise)])
                    runs = [
                        simulated_chance(rng, subjects, repeated, noise) <= 0.01
                        for _ in range(arguments.studies)
                    ]
                    print(f"| {subjects} | {repeated:.0%} | {noise} | {np.mean(runs):.3f} |")


def row_of_table(path: Path) -> list[str]:
    """Return false pairs and found copies of a table."""
    study, rng = load_study(TableOptions(table=path)), np.random.default_rng(0)
    counts = sparse.csr_array(study.counts(np.arange(len(study.table.sample_ids))))
    tokens_FL, samples = study.tokens_FL, counts.shape[0]
    hashes_F = hash_sequences(tokens_FL)
    original = Abundances.from_counts(counts, hashes_F)
    cells = [str(samples), str(len(original.equal_pairs())), str(len(original.alike_pairs()))]
    for depth in (50, 200, 1000):
        shallow = Abundances.from_counts(rarefied(counts, depth, rng), hashes_F)
        cells.append(str(len(shallow.equal_pairs())))
    cut = hash_sequences(tokens_FL[:, : int(np.median((tokens_FL > 0).sum(axis=1)) * 2 / 3)])
    prevalence_F = np.bincount(counts.indices, minlength=counts.shape[1]) / samples
    common = sparse.csr_array(counts @ sparse.diags_array((prevalence_F >= 0.05).astype(int)))
    common.eliminate_zeros()
    relative = original.shares.copy()
    relative.data = relative.data.round(6)
    copies = {
        "cut": (Abundances.from_counts(counts, cut),) * 2,
        "relative": (original, Abundances.from_counts(relative, hashes_F)),
        "common": (original, Abundances.from_counts(common, hashes_F)),
    }
    for one, two in copies.values():
        pairs = one.equal_pairs(two)
        cells.append(f"{(pairs[:, 0] == pairs[:, 1]).sum() / samples:.0%}")
    deep = np.flatnonzero(original.reads_N >= 2000)
    if len(deep):
        copy = Abundances.from_counts(rarefied(counts[deep], 1000, rng), hashes_F)
        pairs = original.alike_pairs(copy)
        cells.append(f"{(pairs[:, 0] == deep[pairs[:, 1]]).mean() * len(pairs) / len(deep):.0%}")
    return cells


def rarefied(counts: sparse.csr_array, depth: int, rng: np.random.Generator) -> sparse.csr_array:
    """Draw reads of each sample without replacement, at most `depth`."""
    rows = [counts[[row]].toarray().ravel() for row in range(counts.shape[0])]
    draw = rng.multivariate_hypergeometric
    return sparse.csr_array(
        np.stack([draw(row, min(depth, row.sum()), method="marginals") for row in rows])
    )


def simulated_chance(
    rng: np.random.Generator, subjects: int, repeated: float, noise: float
) -> float:
    """Return the p value of equal names of two studies, of which a part are one subject.

    Samples of a subject differ by log-normal factors of `noise`, communities of subjects by 2, and
    the studies by factors of each ASV, as of other laboratories.
    """
    shares_IF = rng.lognormal(0, 2, (subjects, ASVS)) * (rng.random((subjects, ASVS)) < 0.4)
    others_IF = rng.lognormal(0, 2, (subjects, ASVS)) * (rng.random((subjects, ASVS)) < 0.4)
    is_same = np.arange(subjects) < round(repeated * subjects)
    studies = []
    for people_IF in (shares_IF, np.where(is_same[:, None], shares_IF, others_IF)):
        expected_IF: npt.NDArray[np.float64] = people_IF * rng.lognormal(0, noise, people_IF.shape)
        expected_IF *= rng.lognormal(0, 1, ASVS)
        expected_IF += 1e-9
        counts = [rng.multinomial(2000, row / row.sum()) for row in expected_IF]
        studies.append(Abundances.from_counts(sparse.csr_array(np.stack(counts)), np.arange(ASVS)))
    names = [f"P{number}" for number in range(subjects)]
    return studies[0].chance_of_names(studies[1], [names, names])


if __name__ == "__main__":
    main()
