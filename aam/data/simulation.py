"""Simulation of studies with known truth (`aam example`): ASVs with niches along a gradient of pH.

The optimum of an ASV's niche is inherited along the tree (Brownian motion). The fitness of an ASV
in a sample decreases with the distance from the optimum, and depends on its clade at the site, on
the subject, and on chance. The fittest ASVs are present, with log-normal abundances and multinomial
reads. Samples are simulated one by one, so memory holds little more than the reads. The same seed
gives the same study.

Several studies share the ASVs and differ like studies of one disease: in the preference for every
ASV (batch effect), the depth and the share of cases. The disease changes some genera in all studies
and one genus in each study alone. One study comes from another laboratory, with shorter reads and
other class names.

Nodes of a tree are numbered so that a parent comes before its children; node 0 is the root.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from math import erf, sqrt
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.arrays import F64
from aam.console import track
from aam.contract.errors import UsageError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.studies import Example
from aam.contract.version import __version__
from aam.data.table import FeatureTable
from aam.memory import memory_available, shown_size

KAPPA = 3.0  # ratio of the rates of transitions and transversions
HEIGHT = 0.4  # mean substitutions per site from the root to a tip
CLOCK_SHAPE = 4.0  # gamma shape of branch rates, mean 1: a relaxed clock
SITE_SHAPE = 0.6  # gamma shape of site rates, mean 1: most sites are conserved, as in 16S

_LETTERS = np.frombuffer(b"ACGT", dtype=np.uint8)
_TRANSITION = 2  # A=0, C=1, G=2, T=3: XOR with 2 is a transition, with 1 or 3 a transversion

PH_LOW, PH_SPAN = 4.0, 5.0
PH_NOISE = 0.25  # standard deviation of the measured pH around the gradient
SUBJECT_SHARE = 0.5  # share of the gradient's variance between subjects
NICHE_WIDTH = (0.18, 0.40)  # about the 10 % and 90 % quantiles, in units of the gradient's span
SITE_CLADES = 24  # clades whose fitness differs between sites
SITE_SHIFT = 0.8  # standard deviations of the terms of an ASV's fitness: its clade at a site,
SUBJECT_SHIFT = 0.9  # the subject,
PREVALENCE = 0.9  # equal in all samples,
CHANCE = 1.9  # random in each sample,
STUDY_SHIFT = 1.0  # and equal in all samples of a study
STUDY_ASVS = 0.6  # share of the ASVs that occur in a study
ABSENT = -20.0  # fitness of the ASVs that do not occur
STUDY_DEPTH = 0.4  # standard deviation of the log depth between studies
CASES = (0.3, 0.7)  # share of cases in the first and in the last study
SHARED_GENERA = 3  # genera that the disease changes in every study
SHARED_EFFECT, OWN_EFFECT = 1.2, 1.8  # effect of the disease on the fitness of a genus' ASVs
OTHER_LABORATORY = 2  # number of the study, from 0, with shorter reads and other classes
OTHER_LENGTH = 0.8  # relative length of its sequences
CLASSES, OTHER_CLASSES = ("control", "case"), ("no", "yes")
RESPONSE_NOISE = 0.5  # standard deviation of the response around the sum of the planted effects
ABUNDANCE_SPREAD = 1.5  # standard deviation of log abundance within a sample
DEPTH_SPREAD = 0.35
RICHNESS_SPREAD = 0.2

_ASV_BYTES = 500
_COUNT_BYTES = 40


_CREATION_DATE = datetime(2000, 1, 1)  # fixed, so that equal seeds give equal files
_FAMILIES, _GENERA = 12, 72  # numbers of named clades


@dataclass(frozen=True)
class SimulatedTree:
    """A rooted binary tree."""

    parents: npt.NDArray[np.int64]  # [2F - 1], the parent of each node; -1 for the root
    lengths: npt.NDArray[np.float64]  # [2F - 1], substitutions per site above each node
    tips: npt.NDArray[np.int64]  # [F], the nodes without children


def yule_tree(tips: int, rng: np.random.Generator) -> SimulatedTree:
    """Simulate a pure-birth (Yule) tree with `tips` (2 or more) tips, on a relaxed clock."""
    parents, born = [-1, 0, 0], [0.0, 0.0, 0.0]
    ended: dict[int, float] = {0: 0.0}
    alive = [1, 2]
    now = 0.0
    for lineages in range(2, tips):
        now += rng.exponential(1 / lineages)
        index = int(rng.integers(lineages))
        node = alive[index]
        ended[node] = now
        alive[index] = len(parents)
        alive.append(len(parents) + 1)
        parents += [node, node]
        born += [now, now]
    now += rng.exponential(1 / tips)
    ends = np.array([ended.get(node, now) for node in range(len(parents))])
    rates = rng.gamma(CLOCK_SHAPE, 1 / CLOCK_SHAPE, len(parents))
    lengths = (ends - np.array(born)) * rates * (HEIGHT / now)
    return SimulatedTree(np.array(parents), lengths, np.sort(np.array(alive)))


def clades(tree: SimulatedTree, count: int) -> npt.NDArray[np.int64]:
    """Cut the tree at `count` lineages; return the clade of each tip, int64 [F]."""
    early = min(2 * count, 2 * len(tree.tips)) - 1
    origin = np.arange(len(tree.parents))
    for node in range(early, len(origin)):
        origin[node] = origin[tree.parents[node]]
    labels: npt.NDArray[np.int64] = np.unique(origin[tree.tips], return_inverse=True)[1]
    return labels


def brownian(tree: SimulatedTree, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Simulate a trait by Brownian motion; float64 [F], standardised over the tips."""
    steps = rng.standard_normal(len(tree.parents)) * np.sqrt(tree.lengths)
    values = np.zeros(len(steps))
    for node in range(1, len(steps)):
        values[node] = values[tree.parents[node]] + steps[node]
    tips = values[tree.tips]
    standard: npt.NDArray[np.float64] = (tips - tips.mean()) / max(float(tips.std()), 1e-12)
    return standard


def evolve_dna(tree: SimulatedTree, length: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Evolve `length` nucleotides by Kimura's two-parameter model with gamma rates of sites.

    Equal tips get one more substitution each until all F sequences are distinct.
    """
    rates = rng.gamma(SITE_SHAPE, 1 / SITE_SHAPE, length)
    rates /= rates.mean()
    codes = np.empty((len(tree.parents), length), dtype=np.uint8)
    codes[0] = rng.integers(4, size=length)
    for node in range(1, len(codes)):
        distance = rates * tree.lengths[node]
        slow = np.exp(-4 * distance / (KAPPA + 2))
        fast = np.exp(-2 * distance * (KAPPA + 1) / (KAPPA + 2))
        transition = 0.25 + 0.25 * slow - 0.5 * fast
        transversion = 0.5 - 0.5 * slow
        uniform = rng.random(length)
        change = np.where(uniform < transition, _TRANSITION, 0)
        transversions = (uniform >= transition) & (uniform < transition + transversion)
        change[transversions] = np.where(
            uniform[transversions] < (transition + transversion / 2)[transversions], 1, 3
        )
        codes[node] = codes[tree.parents[node]] ^ change
    tips = codes[tree.tips]
    seen: set[bytes] = set()
    for row in tips:
        while row.tobytes() in seen:
            row[rng.integers(length)] ^= rng.integers(1, 4)
        seen.add(row.tobytes())
    return tuple(_LETTERS[row].tobytes().decode("ascii") for row in tips)


def newick(tree: SimulatedTree, names: Sequence[str]) -> str:
    """Format the tree as Newick with `names` [F] in the order of `tree.tips`."""
    labels = dict(zip(tree.tips.tolist(), names, strict=True))
    children: dict[int, list[str]] = {}
    for node in range(len(tree.parents) - 1, 0, -1):
        inner = children.pop(node, None)
        label = labels[node] if inner is None else f"({','.join(inner)})"
        children.setdefault(int(tree.parents[node]), []).append(f"{label}:{tree.lengths[node]:.9g}")
    return f"({','.join(children[0])});\n"


@dataclass(frozen=True)
class Niches:
    """Niches of F ASVs: terms of their fitness that all studies share; S sites."""

    # optimum, width: [F], along the gradient; in units of its span
    optimum: F64
    width: F64
    prevalence: F64  # [F], term of the fitness that is equal in all samples
    clade: npt.NDArray[np.int64]  # [F], the clade of each ASV, from 0
    site_SC: F64  # term that depends on the site and the clade


@dataclass(frozen=True)
class Places:
    """Subject, site and position on the gradient of N samples."""

    # subject, site: int64 [N], numbers from 0
    subject: npt.NDArray[np.int64]
    site: npt.NDArray[np.int64]
    gradient: F64  # [N], true gradient that acts on the ASVs, in units of its span
    ph: F64  # [N], the pH as measured, 4 to 9

    @property
    def gradient_ph(self) -> F64:
        """The gradient in units of pH, [N]."""
        return PH_LOW + PH_SPAN * self.gradient


@dataclass(frozen=True)
class Studies:
    """Differences between K studies of N samples; a single study has no effects (0)."""

    number: npt.NDArray[np.int64]  # [N], the study of each sample, from 0
    is_case: npt.NDArray[np.bool_]  # [N], whether the disease acts on the sample
    batch_KF: F64  # preference of each study for each ASV
    disease_KF: F64  # effect of the disease on the fitness of each ASV
    depth_K: F64  # mean reads of a sample


@dataclass(frozen=True)
class Response:
    """Response column: the sum of the effects of P planted ASVs, and noise."""

    planted: npt.NDArray[np.int64]  # [P], numbers of the ASVs; may be empty
    effects: F64  # [P], 1 or -1 per standard deviation of the log abundance
    values: F64  # [N], sum of the effects, and noise


@dataclass(frozen=True, kw_only=True)
class SimulatedStudy(FeatureTable):
    """A simulated study with its truth; ASVs are named by their F distinct sequences."""

    tree: SimulatedTree  # the tree; tip f is ASV f
    # niches, places, studies, response: the truth
    niches: Niches
    places: Places
    studies: Studies
    response: Response


def simulate(options: Example) -> SimulatedStudy:
    """Simulate one or several studies by the options of `aam example`."""
    if not options.subjects:
        subjects = min(options.samples, max(options.sites, options.samples // 3))
        options = replace(options, subjects=options.samples if options.studies else subjects)
    _check_size(options)
    # Separate random streams: another number of samples does not change the tree.
    for_tree, for_dna, for_niches, for_samples, for_response, for_studies = np.random.default_rng(
        options.seed
    ).spawn(6)
    tree = yule_tree(options.asvs, for_tree)
    sequences = evolve_dna(tree, options.length, for_dna)
    niches = _niches(tree, options.sites, for_niches)
    places = _places(options, for_niches)
    studies = _studies(options, tree, places.subject, for_studies)
    counts = _counts(niches, places, studies, _present(options), for_samples)
    response = _response(counts, options.planted, for_response)
    digits = len(str(options.samples))
    # As in real studies, samples of several studies have the same ids.
    numbers = [row % options.samples + 1 for row in range(counts.shape[0])]
    sample_ids = tuple(f"S{number:0{digits}d}" for number in numbers)
    return SimulatedStudy(
        sample_ids, sequences, counts, tree=tree, niches=niches, places=places, studies=studies,
        response=response,
    )  # fmt: skip


def _check_size(options: Example) -> None:
    longest_name = 4**options.length if options.length < 32 else options.asvs**2
    for name, low, high in (
        ("samples", 2, 10_000_000),
        ("asvs", 2, min(10_000_000, longest_name // 4)),
        ("length", 4, 10_000),
        ("richness", 1, options.asvs),
        ("depth", options.richness, 100_000_000),
        ("sites", 1, options.subjects),
        ("subjects", 1, options.samples),
        ("planted", 0, options.richness // 2),
        ("studies", 0, len(ascii_lowercase)),
        ("seed", 0, 2**63),
    ):
        if not low <= (value := getattr(options, name)) <= high:
            remedy = f"give {low} to {high} with these options"
            raise UsageError("Invalid size of the study", f"--{name} {value}", remedy)
    size = _ASV_BYTES * options.asvs + 4 * options.asvs * options.length
    size += _COUNT_BYTES * options.samples * options.richness * max(1, options.studies)
    size += _ASV_BYTES * options.asvs * options.studies // 10
    if size > (available := memory_available()):
        raise UsageError(
            "The study does not fit in memory",
            f"it takes {shown_size(size)}, {shown_size(available)} are available",
            "give fewer --samples or --asvs, or a smaller --length or --richness",
        )


def _niches(tree: SimulatedTree, sites: int, rng: np.random.Generator) -> Niches:
    asvs = len(tree.tips)
    optimum = _uniform(brownian(tree, rng)) * 1.2 - 0.1
    low, high = np.log(NICHE_WIDTH)
    width = np.exp(rng.normal((low + high) / 2, (high - low) / 2.56, asvs))
    prevalence = PREVALENCE * rng.standard_normal(asvs)
    shifts = rng.standard_normal((sites, SITE_CLADES)) * SITE_SHIFT
    shifts[rng.random(shifts.shape) < 0.5] = 0
    return Niches(optimum, width, prevalence, clades(tree, SITE_CLADES), shifts)


def _places(options: Example, rng: np.random.Generator) -> Places:
    """Assign samples to subjects, subjects to sites, and both to positions on the gradient."""
    studies = max(1, options.studies)
    samples, subjects = options.samples * studies, options.subjects * studies
    subject = np.arange(samples) * subjects // samples
    site = rng.permutation(np.arange(subjects) % options.sites)[subject]
    between = sqrt(SUBJECT_SHARE) * rng.standard_normal(subjects)[subject]
    within = sqrt(1 - SUBJECT_SHARE) * rng.standard_normal(samples)
    gradient = _uniform(between + within)
    noisy = PH_LOW + PH_SPAN * gradient + rng.normal(0, PH_NOISE, samples)
    ph = np.round(np.clip(noisy, PH_LOW, PH_LOW + PH_SPAN), 2).astype(np.float64)
    return Places(subject, site, gradient, ph)


def _studies(
    options: Example,
    tree: SimulatedTree,
    subject: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> Studies:
    """Draw batch effects, depths, cases and disease effects if there are several studies."""
    studies = max(1, options.studies)
    number = np.arange(len(subject)) // options.samples
    is_case = np.zeros(len(subject), dtype=np.bool_)
    none_KF = np.zeros((studies, options.asvs))
    depth_K = np.full(studies, float(options.depth))
    if not options.studies:
        return Studies(number, is_case, none_KF, none_KF, depth_K)
    batch_KF = STUDY_SHIFT * rng.standard_normal(none_KF.shape)
    batch_KF[rng.random(batch_KF.shape) > STUDY_ASVS] = ABSENT
    depth_K *= np.exp(STUDY_DEPTH * rng.standard_normal(studies))
    # The cases of a study are the subjects with the lowest random liability.
    liability = rng.random(subject[-1] + 1)[subject]
    for study, share in enumerate(np.linspace(*CASES, studies)):
        rows = number == study
        is_case[rows] = liability[rows] <= np.quantile(liability[rows], share)
    return Studies(number, is_case, batch_KF, _disease(tree, studies, rng), depth_K)


def _present(options: Example) -> float:
    """Find by bisection how many ASVs must be present so that `richness` of them get reads."""
    spread = np.exp(ABUNDANCE_SPREAD * np.random.default_rng(0).standard_normal(20_000))
    share = spread / spread.mean()
    fewest, most = float(options.richness), float(options.asvs)
    for _ in range(40):
        present = (fewest + most) / 2
        seen = present * float(np.mean(1 - np.exp(-options.depth / present * share)))
        fewest, most = (present, most) if seen < options.richness else (fewest, present)
    return (fewest + most) / 2


def _counts(
    niches: Niches, places: Places, studies: Studies, present: float, rng: np.random.Generator
) -> sparse.csr_array:
    """Draw the reads of each sample, int32 [N, F], with about `present` ASVs per sample."""
    samples, asvs = len(places.subject), len(niches.optimum)
    columns, reads = [], []
    common = np.zeros(asvs)  # fitness that the samples of a subject share
    for row in track(range(samples), "Samples", samples, "samples"):
        study = studies.number[row]
        if row == 0 or places.subject[row] != places.subject[row - 1]:
            individual = SUBJECT_SHIFT * rng.standard_normal(asvs)
            at_site = niches.site_SC[places.site[row], niches.clade]
            common = niches.prevalence + individual + at_site + studies.batch_KF[study]
        distance = (places.gradient[row] - niches.optimum) / niches.width
        fitness = common - 0.5 * distance**2
        fitness += studies.is_case[row] * studies.disease_KF[study]
        # The fittest ASVs are present; their abundance depends partly on their fitness.
        score = fitness + CHANCE * rng.standard_normal(asvs)
        number = round(present * rng.lognormal(-(RICHNESS_SPREAD**2) / 2, RICHNESS_SPREAD))
        number = min(max(number, 1), asvs)
        chosen = np.sort(np.argpartition(score, -number)[-number:])
        rank = score[chosen] - score[chosen].mean()
        rank /= max(float(rank.std()), 1e-12)
        log = ABUNDANCE_SPREAD * (0.6 * rank + 0.8 * rng.standard_normal(number))
        abundance = np.exp(log - log.max())
        depth = studies.depth_K[study] * rng.lognormal(-(DEPTH_SPREAD**2) / 2, DEPTH_SPREAD)
        counted = rng.multinomial(max(1, round(depth)), abundance / abundance.sum())
        columns.append(chosen[counted > 0].astype(np.int32))
        reads.append(counted[counted > 0].astype(np.int32))
    ends = np.cumsum([0, *(len(present_asvs) for present_asvs in columns)])
    arrays = (np.concatenate(reads), np.concatenate(columns), ends)
    return sparse.csr_array(arrays, shape=(samples, asvs))


def _response(counts: sparse.csr_array, planted: int, rng: np.random.Generator) -> Response:
    """Compute a response from `planted` ASVs of medium prevalence (10 to 90 %)."""
    samples, asvs = counts.shape
    prevalence = np.bincount(counts.indices, minlength=asvs) / samples
    candidates = np.flatnonzero((prevalence > 0.1) & (prevalence < 0.9))
    if planted > len(candidates):
        raise UsageError(
            "Too few ASVs occur in 10 to 90 % of the samples",
            f"{len(candidates)} for --planted {planted}",
            "give a smaller --planted",
        )
    chosen = np.sort(rng.choice(candidates, planted, replace=False))
    effects = rng.choice([-1.0, 1.0], planted)
    relative = counts[:, chosen].toarray() / counts.sum(axis=1, dtype=np.int64)[:, None]
    log = np.log10(1 + 1e4 * relative)
    scaled = (log - log.mean(axis=0)) / log.std(axis=0).clip(min=1e-12)
    values = scaled @ effects + RESPONSE_NOISE * rng.standard_normal(samples)
    return Response(chosen, effects, values)


def _disease(tree: SimulatedTree, studies: int, rng: np.random.Generator) -> F64:
    """Draw the effect of the disease on each ASV, float64 [K, F]: shared genera, one per study."""
    genus = clades(tree, _GENERA)
    sizes = np.bincount(genus)
    largest = np.argsort(-sizes, kind="stable")[: max(len(sizes) // 2, SHARED_GENERA + studies)]
    if len(largest) < SHARED_GENERA + studies:
        raise UsageError(
            "Too few genera for the disease",
            f"{len(sizes)} for {SHARED_GENERA} shared genera and one genus for each of {studies} "
            "studies",
            "give more --asvs",
        )
    genera = rng.permutation(largest)[: SHARED_GENERA + studies]
    signs = np.arange(len(genera)) % 2 * 2.0 - 1
    disease_KF = np.zeros((studies, len(genus)))
    for sign, chosen in zip(signs, genera[:SHARED_GENERA], strict=False):
        disease_KF[:, genus == chosen] = sign * SHARED_EFFECT
    for number, (sign, chosen) in enumerate(
        zip(signs[SHARED_GENERA:], genera[SHARED_GENERA:], strict=True)
    ):
        disease_KF[number, genus == chosen] = sign * OWN_EFFECT
    return disease_KF


def _uniform(values: F64) -> F64:
    """Map standard normal values to 0..1 by their distribution function."""
    return np.array([0.5 * (1 + erf(value / sqrt(2))) for value in values.tolist()])


def study_folders(options: Example) -> tuple[Path, ...]:
    """Return the folder of each study: --output-dir, or its subfolders a, b, ..."""
    names = ascii_lowercase[: options.studies] or [""]
    return tuple(options.output_dir / name for name in names)


def _paths(options: Example) -> tuple[Path, ...]:
    names = ("table.biom", "metadata.tsv")
    of_studies = [folder / name for folder in study_folders(options) for name in names]
    of_all = ("tree.nwk", "taxonomy.tsv", "truth.json")
    return (*of_studies, *(options.output_dir / name for name in of_all))


def require_free(options: Example) -> None:
    """Refuse to replace a file of a study without --overwrite."""
    for path in _paths(options):
        refuse_existing(path, options.overwrite)


def write_study(study: SimulatedStudy, options: Example) -> tuple[Path, ...]:
    """Write a simulated study into --output-dir, all files or none, and return their paths.

    Table and taxonomy have ASVs with reads only; the tree has all ASVs. `r2_of_the_gradient` in
    truth.json is R2 of the column `ph` predicted by the true gradient: an upper bound for every
    model.
    """
    require_free(options)
    contents: list[bytes] = []
    names_K: list[Sequence[str]] = []
    for number in range(max(1, options.studies)):
        rows = np.flatnonzero(study.studies.number == number)
        length = options.length
        if options.studies and number == min(OTHER_LABORATORY, options.studies - 1):
            length = round(OTHER_LENGTH * length)
        names_K.append([dna[:length] for dna in study.feature_ids])
        ids = [study.sample_ids[row] for row in rows.tolist()]
        contents.append(_table_bytes(study.counts[rows], ids, names_K[-1]))
        is_other = length < options.length
        contents.append(
            _metadata_bytes(study, options, rows, OTHER_CLASSES if is_other else CLASSES)
        )

    taxon_of = _taxa(study, names_K)
    taxa = [("Feature ID", "Taxon"), *taxon_of.items()]
    contents += [
        newick(study.tree, study.feature_ids).encode(),
        "".join("\t".join(row) + "\n" for row in taxa).encode(),
        (json.dumps(_truth(study, options, taxon_of), indent=1) + "\n").encode(),
    ]
    paths = _paths(options)
    with ExitStack() as stack:
        for path, data in zip(paths, contents, strict=True):
            stack.enter_context(atomic_write(path)).write_bytes(data)
    return paths


def _taxa(study: SimulatedStudy, names_K: Sequence[Sequence[str]]) -> dict[str, str]:
    """Name the taxa of ASVs with reads by clades of the tree; the keys are ids of all studies."""
    family, genus = (clades(study.tree, count) + 1 for count in (_FAMILIES, _GENERA))
    taxon_of: dict[str, str] = {}
    for asv in np.unique(study.counts.indices).tolist():
        taxon = f"d__Simulated; f__Family-{family[asv]}; g__Genus-{family[asv]}.{genus[asv]}"
        for names in names_K:
            taxon_of.setdefault(names[asv], taxon)
    return taxon_of


def _truth(study: SimulatedStudy, options: Example, taxon_of: Mapping[str, str]) -> dict[str, Any]:
    niches, places, response = study.niches, study.places, study.response
    parameters = asdict(options)
    del parameters["output_dir"], parameters["overwrite"]
    error = float(np.square(places.ph - places.gradient_ph).sum())
    spread = float(np.square(places.ph - places.ph.mean()).sum())
    optima = (PH_LOW + PH_SPAN * niches.optimum).tolist()
    widths = (PH_SPAN * niches.width).tolist()
    letters = ascii_lowercase[: options.studies]
    folders = [letters[number : number + 1] for number in study.studies.number.tolist()]
    gradient = zip(folders, study.sample_ids, places.gradient_ph.round(4).tolist(), strict=True)
    return {
        "aam": __version__,
        "parameters": parameters,
        "measured": {
            "asvs_with_reads": len(np.unique(study.counts.indices)),
            "reads": int(study.reads.sum()),
            "mean_richness": round(float(study.richness.mean()), 2),
            "mean_depth": round(float(study.reads.mean()), 2),
            "r2_of_the_gradient": round(1 - error / spread, 4) if spread else None,
        },
        "gradient_ph": {
            f"{folder}.{name}".removeprefix("."): value for folder, name, value in gradient
        },
        "niches_ph": {
            name: [round(optimum, 4), round(width, 4)]
            for name, optimum, width in zip(study.feature_ids, optima, widths, strict=True)
        },
        "planted": {
            study.feature_ids[asv]: effect
            for asv, effect in zip(
                response.planted.tolist(), response.effects.tolist(), strict=True
            )
        },
        # genera that the disease changes in each study
        "disease": {
            letter: {
                taxon_of[study.feature_ids[asv]].rpartition("; ")[2]: effects_F[asv]
                for asv in np.flatnonzero(effects_F).tolist()
                if study.feature_ids[asv] in taxon_of
            }
            for letter, effects_F in zip(letters, study.studies.disease_KF, strict=False)
        },
    }


def _table_bytes(counts: sparse.csr_array, ids: Sequence[str], names: Sequence[str]) -> bytes:
    """Encode counts as BIOM 2.1; reads of ASVs with equal names are summed."""
    import biom
    import h5py

    seen = np.unique(counts.indices)
    column_of = {name: column for column, name in enumerate(dict.fromkeys(names[a] for a in seen))}
    columns = np.array([column_of.get(name, 0) for name in names])
    arrays = (counts.data, columns[counts.indices], counts.indptr)
    by_sample = sparse.csr_matrix(arrays, shape=(len(ids), len(column_of)), dtype=np.float64)
    by_sample.sum_duplicates()
    table = biom.Table(by_sample.T.tocsr(), [*column_of], list(ids), type="OTU table")
    content = io.BytesIO()  # HDF5 prints its own tracebacks if a disk is full
    with h5py.File(content, "w") as file:
        table.to_hdf5(file, f"aam {__version__}", creation_date=_CREATION_DATE)
    return content.getvalue()


def _metadata_bytes(
    study: SimulatedStudy,
    options: Example,
    rows: npt.NDArray[np.int64],
    classes: tuple[str, str],
) -> bytes:
    columns: dict[str, tuple[str, list[str]]] = {
        "ph": ("numeric", [f"{value:.2f}" for value in study.places.ph]),
        "site": ("categorical", [f"site-{number + 1}" for number in study.places.site]),
        "subject": (
            "categorical",
            [f"subject-{number + 1:03d}" for number in study.places.subject],
        ),
        "depth": ("numeric", [str(reads) for reads in study.reads]),
    }
    if len(study.response.planted):
        columns["response"] = ("numeric", [f"{value:.4f}" for value in study.response.values])
    if options.studies:
        columns = {
            "disease": ("categorical", [classes[int(c)] for c in study.studies.is_case]),
            **columns,
        }
    lines = [("sample-id", *columns), ("#q2:types", *(kind for kind, _ in columns.values()))]
    cells = [study.sample_ids, *(values for _, values in columns.values())]
    lines += [tuple(column[row] for column in cells) for row in rows.tolist()]
    return "".join("\t".join(line) + "\n" for line in lines).encode()
