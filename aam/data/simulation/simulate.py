"""Simulation of a study with known truth: ASVs with inherited niches along a gradient of pH.

Each ASV has a niche on the gradient, whose optimum it inherits along the tree (Brownian motion).
Its fitness in a sample is lower outside the niche and depends on its clade at the site, on the
subject, and on chance. The ASVs with the highest fitness are present, with log-normal abundances
and multinomial reads. One sample is simulated at a time, so memory is that of the reads. The same
seed gives the same study.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, sqrt

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.console import track
from aam.contract.errors import UsageError
from aam.contract.options.commands.studies import Simulate
from aam.data.simulation.evolution import SimulatedTree, brownian, clades, evolve_dna, yule_tree
from aam.memory import memory_available, shown_size

PH_LOW, PH_SPAN = 4.0, 5.0
PH_NOISE = 0.25  # standard deviation of the measured pH around the gradient
SUBJECT_SHARE = 0.5  # part of the gradient's variance that lies between subjects
NICHE_WIDTH = (0.18, 0.40)  # of the gradient's span, 10 % and 90 % quantiles about
SITE_CLADES = 24  # clades whose fitness differs between sites
SITE_SHIFT = 0.8  # standard deviations of the parts of an ASV's fitness: of its clade at a site,
SUBJECT_SHIFT = 0.9  # of a subject,
PREVALENCE = 0.9  # the same in all samples,
CHANCE = 1.9  # random in each sample
RESPONSE_NOISE = 0.5  # standard deviation of the response around the sum of the planted effects
ABUNDANCE_SPREAD = 1.5  # standard deviation of log abundance within a sample
DEPTH_SPREAD = 0.35
RICHNESS_SPREAD = 0.2

_MOST_CELLS = 10**12  # hours, at 20 ns to draw the fitness of an ASV in a sample
_ASV_BYTES = 500
_COUNT_BYTES = 40

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedStudy:
    """A simulated study with its truth; N samples, F ASVs.

    Attributes:
        sample_ids: N names.
        sequences: F distinct sequences, the names of the tree's tips.
        counts: int32 [N, F] reads, without explicit zeros.
        tree: the tree; tip f is ASV f.
        gradient: [N], the pH that acts on the ASVs.
        ph: [N], the pH as measured, 4 to 9.
        site, subject: int64 [N], numbers from 0.
        optimum, width: [F], the niche of each ASV in units of pH.
        planted: int64 [P], ASVs that decide the response; empty without any.
        effects: [P], 1 or -1, for one standard deviation of their log abundance.
        response: [N], sum of the effects, and noise.
    """

    sample_ids: tuple[str, ...]
    sequences: tuple[str, ...]
    counts: sparse.csr_array
    tree: SimulatedTree
    gradient: F64
    ph: F64
    site: npt.NDArray[np.int64]
    subject: npt.NDArray[np.int64]
    optimum: F64
    width: F64
    planted: npt.NDArray[np.int64]
    effects: F64
    response: F64

    @property
    def reads(self) -> npt.NDArray[np.int64]:
        """Reads of each sample, [N]."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64)).ravel()

    @property
    def richness(self) -> npt.NDArray[np.int64]:
        """ASVs with reads in each sample, [N]."""
        return np.asarray(np.diff(self.counts.indptr), dtype=np.int64)


def _check(options: Simulate) -> None:
    """Refuse sizes that contradict each other, or that time and memory do not allow."""
    longest_name = 4**options.length if options.length < 32 else options.asvs**2
    limits = (
        ("samples", options.samples, 2, 10_000_000),
        ("asvs", options.asvs, 2, min(10_000_000, longest_name // 4)),
        ("length", options.length, 4, 10_000),
        ("richness", options.richness, 1, options.asvs),
        ("depth", options.depth, options.richness, 100_000_000),
        ("sites", options.sites, 1, options.subjects),
        ("subjects", options.subjects, 1, options.samples),
        ("planted", options.planted, 0, options.richness // 2),
        ("seed", options.seed, 0, 2**63),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            remedy = f"give {low} to {high} with these options"
            raise UsageError("Invalid size of the study", f"--{name} {value}", remedy)
    if (cells := options.samples * options.asvs) > _MOST_CELLS:
        raise UsageError(
            "The study would take days to simulate",
            f"--samples {options.samples} x --asvs {options.asvs} are {cells:.0e} draws",
            f"give at most {_MOST_CELLS:.0e}",
        )
    size = _ASV_BYTES * options.asvs + 4 * options.asvs * options.length
    size += _COUNT_BYTES * options.samples * options.richness
    if size > (available := memory_available()):
        raise UsageError(
            "The study does not fit in memory",
            f"it takes {shown_size(size)}, {shown_size(available)} are available",
            "give fewer --samples or --asvs, or a smaller --length or --richness",
        )


def simulate(options: Simulate) -> SimulatedStudy:
    """Simulate the study that `options` describes; the output folder is not used.

    Raises:
        UsageError: sizes that contradict each other, or need too much time or memory.
    """
    _check(options)
    streams = np.random.default_rng(options.seed).spawn(5)
    tree = yule_tree(options.asvs, streams[0])
    sequences = evolve_dna(tree, options.length, streams[1])
    rng = streams[2]
    optimum = _uniform(brownian(tree, rng)) * 1.2 - 0.1
    low, high = np.log(NICHE_WIDTH)
    width = np.exp(rng.normal((low + high) / 2, (high - low) / 2.56, options.asvs))
    prevalence = PREVALENCE * rng.standard_normal(options.asvs)
    shifts = rng.standard_normal((options.sites, SITE_CLADES)) * SITE_SHIFT
    shifts[rng.random(shifts.shape) < 0.5] = 0
    clade = clades(tree, SITE_CLADES)

    subject = np.arange(options.samples) * options.subjects // options.samples
    site = rng.permutation(np.arange(options.subjects) % options.sites)[subject]
    between = sqrt(SUBJECT_SHARE) * rng.standard_normal(options.subjects)[subject]
    within = sqrt(1 - SUBJECT_SHARE) * rng.standard_normal(options.samples)
    gradient = _uniform(between + within)
    noisy = PH_LOW + PH_SPAN * gradient + rng.normal(0, PH_NOISE, options.samples)
    ph = np.round(np.clip(noisy, PH_LOW, PH_LOW + PH_SPAN), 2).astype(np.float64)

    rng = streams[3]
    present = _mean_present(options)
    columns, reads = [], []
    common = np.zeros(options.asvs)  # The part of the fitness that a subject's samples share.
    for row in track(range(options.samples), "Samples", options.samples, "samples"):
        if row == 0 or subject[row] != subject[row - 1]:
            individual = SUBJECT_SHIFT * rng.standard_normal(options.asvs)
            common = prevalence + individual + shifts[site[row], clade]
        fitness = common - 0.5 * ((gradient[row] - optimum) / width) ** 2
        found, counted = _sample(fitness, present, options.depth, rng)
        columns.append(found)
        reads.append(counted)
    ends = np.cumsum([0, *(len(found) for found in columns)])
    counts = sparse.csr_array(
        (np.concatenate(reads), np.concatenate(columns), ends),
        shape=(options.samples, options.asvs),
    )
    planted, effects, response = _plant(counts, options.planted, streams[4])
    digits = len(str(options.samples))
    return SimulatedStudy(
        sample_ids=tuple(f"S{number:0{digits}d}" for number in range(1, options.samples + 1)),
        sequences=sequences,
        counts=counts,
        tree=tree,
        gradient=PH_LOW + PH_SPAN * gradient,
        ph=ph,
        site=site,
        subject=subject,
        optimum=PH_LOW + PH_SPAN * optimum,
        width=PH_SPAN * width,
        planted=planted,
        effects=effects,
        response=response,
    )


def _plant(
    counts: sparse.csr_array, number: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], F64, F64]:
    """Choose ASVs of 10 to 90 % prevalence; return them, their effects [P] and the response [N].

    Raises:
        UsageError: fewer than `number` ASVs have such a prevalence.
    """
    prevalence = np.bincount(counts.indices, minlength=counts.shape[1]) / counts.shape[0]
    candidates = np.flatnonzero((prevalence > 0.1) & (prevalence < 0.9))
    if number > len(candidates):
        raise UsageError(
            "Too few ASVs occur in 10 to 90 % of the samples",
            f"{len(candidates)} for --planted {number}",
            "give a smaller --planted",
        )
    planted = np.sort(rng.choice(candidates, number, replace=False))
    effects = rng.choice([-1.0, 1.0], number)
    reads = counts.sum(axis=1, dtype=np.int64)
    log = np.log10(1 + 1e4 * counts[:, planted].toarray() / reads[:, None])
    scaled = (log - log.mean(axis=0)) / log.std(axis=0).clip(min=1e-12)
    response = scaled @ effects + RESPONSE_NOISE * rng.standard_normal(counts.shape[0])
    return planted, effects, response


def _sample(
    fitness: F64, present: float, depth: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the ASVs of one sample, ascending, and their reads (1 or more each).

    Args:
        fitness: [F], of each ASV in the sample, without chance.
        present: mean number of ASVs that are present, with reads or not.
        depth: mean number of reads.
        rng: random numbers.
    """
    score = fitness + CHANCE * rng.standard_normal(len(fitness))
    size = round(present * rng.lognormal(-(RICHNESS_SPREAD**2) / 2, RICHNESS_SPREAD))
    size = min(max(size, 1), len(fitness))
    chosen = np.sort(np.argpartition(score, -size)[-size:])
    rank = score[chosen] - score[chosen].mean()
    rank /= max(float(rank.std()), 1e-12)
    log = ABUNDANCE_SPREAD * (0.6 * rank + 0.8 * rng.standard_normal(size))
    abundance = np.exp(log - log.max())
    total = max(1, round(depth * rng.lognormal(-(DEPTH_SPREAD**2) / 2, DEPTH_SPREAD)))
    counted = rng.multinomial(total, abundance / abundance.sum())
    seen = counted > 0
    return chosen[seen].astype(np.int32), counted[seen].astype(np.int32)


def _mean_present(options: Simulate) -> float:
    """Find how many ASVs must be present for `richness` of them to have reads, by bisection."""
    spread = np.exp(ABUNDANCE_SPREAD * np.random.default_rng(0).standard_normal(20_000))
    share = spread / spread.mean()
    low, high = float(options.richness), float(options.asvs)
    for _ in range(40):
        middle = (low + high) / 2
        seen = middle * float(np.mean(1 - np.exp(-options.depth / middle * share)))
        low, high = (middle, high) if seen < options.richness else (low, middle)
    return (low + high) / 2


def _uniform(values: F64) -> F64:
    """Map standard normal values to 0..1 by their distribution function."""
    return np.array([0.5 * (1 + erf(value / sqrt(2))) for value in values.tolist()])
