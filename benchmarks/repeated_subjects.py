"""Repeated subjects: how often columns of true subjects are found, and other columns are named.

    nice python benchmarks/repeated_subjects.py --studies 200 [--data ../shared/data]

Studies of independent samples have columns that are no subjects: a text that refines the class,
the number of the target in other units or in intervals, days of collection with an effect of the
batch, a whole number that follows the target, and categories. Studies of subjects have identifiers
as shuffled whole numbers, dates of birth, names such as 12-4-31 and numbered names; few subjects of
many samples have the column name `subject`. Longitudinal studies have 2 to 60 samples of a subject,
under a plain name, beside its sex and arm and the day of each sample; others have as many samples
of a site, a study, an arm, a month or a batch, each of another person, and the persons' sex, age
and day. Simulated communities are log-normal; with --data, samples are drawn from real studies:
persons of one sample (ravel), infants (ecam), mouths (oral).

Prints, for each kind of study, the fraction in which a column is named, and of subjects the
fraction of samples whose nearest community is of the same one.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from aam.arrays import F64, Rows
from aam.console import as_library
from aam.data.metadata import as_numbers, read_metadata
from aam.data.table import read_table
from aam.evaluation.labels import Labels
from aam.pipeline.repeated_samples import Communities, alikeness

Kind = Callable[[np.random.Generator], tuple[bool, float]]
ASVS, READS = 150, 5000
PEOPLE = re.compile(r"MNIH(\d+)")  # in the sample ids of study 2024 of `oral`


def main() -> None:
    """Simulate the studies of each kind, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="pattern of the kinds of studies")
    parser.add_argument("--data", type=Path, help="folder of ecam, oral and ravel")
    arguments = parser.parse_args()
    kinds: dict[str, Kind] = {
        f"{target}, {effect}": partial(simulated_persons, target=target, effect=size)
        for target in ("classes", "number")
        for effect, size in (("no effect", 0.0), ("effect", 0.5), ("strong effect", 1.5))
    }
    kinds["classes, days with a strong effect"] = partial(
        simulated_persons, target="classes", effect=0.5, batch=0.7
    )
    for sigma in (1.0, 1.5):
        for form in FORMS:
            kinds[f"subjects, sd {sigma}, {form}"] = partial(
                simulated_subjects, sigma=sigma, form=form
            )
    for each in (2, 5, 10, 22, 40, 60):
        for sigma in (0.7, 1.0):
            kinds[f"longitudinal, sd {sigma}, {each} each"] = partial(
                longitudinal, each=each, sigma=sigma, subjects=(12, 31)
            )
    for each in (10, 22, 40, 60):
        kinds[f"6 to 11 subjects, sd 1.0, {each} each"] = partial(
            longitudinal, each=each, sigma=1.0, subjects=(6, 12)
        )
    for factor in FACTORS:
        for naming in ("named", "plain name", "plain name, no sex"):
            kinds[f"{factor}, {naming}"] = partial(independent_of, factor=factor, naming=naming)
    if arguments.data:
        kinds |= real_studies(arguments.data)
    print(f"{'study':44} named  nearest")
    for number, (kind, study) in enumerate(kinds.items()):
        if not re.search(arguments.only, kind):
            continue
        named, hits = [], []
        for replicate in range(arguments.studies):
            found, nearest = study(np.random.default_rng([arguments.seed, number, replicate]))
            named.append(found)
            hits.append(nearest)
        known = [value for value in hits if not np.isnan(value)]
        shown = f"{np.mean(known):.2f}" if known else ""
        print(f"{kind:44} {np.mean(named):.3f}  {shown}", flush=True)


def simulated_persons(
    rng: np.random.Generator, target: str, effect: float, batch: float = 0.4
) -> tuple[bool, float]:
    """Return whether a column of 40 to 160 independent samples, which follow a target, is named."""
    samples = int(rng.integers(40, 161))
    direction_CU = rng.normal(0, effect, (2, ASVS)) * (rng.random((2, ASVS)) < 0.3)
    if target == "classes":
        codes_N = rng.integers(2, size=samples).astype(np.float64)
        labels, shift_NU = Labels.of(codes_N, ("a", "b"), None), codes_N[:, None] * direction_CU[0]
    else:
        days_N = rng.integers(1, 1000, samples).astype(np.float64)
        turn_N = days_N[:, None] / 1000 * np.pi
        shift_NU = 2 * (np.cos(turn_N) * direction_CU[0] + np.sin(turn_N) * direction_CU[1])
        labels = Labels.of(days_N, (), None)
    counts = communities(rng, shift_NU + rng.normal(0, 1.5, (samples, ASVS)))
    return independent(counts, labels, rng, batch)


def communities(rng: np.random.Generator, logs_NU: F64) -> sparse.csr_array:
    """Draw reads of communities from log abundances, with a common mean for each ASV."""
    shares_NU = np.exp(logs_NU + rng.normal(0, 1.5, logs_NU.shape[1]))
    shares_NU /= shares_NU.sum(axis=1, keepdims=True)
    return sparse.csr_array(
        rng.poisson(READS * shares_NU) + (shares_NU == shares_NU.max(axis=1, keepdims=True))
    )


def independent(
    counts: sparse.csr_array, labels: Labels, rng: np.random.Generator, batch: float = 0.4
) -> tuple[bool, float]:
    """Return whether a column of independent samples is named, of all that could be."""
    values_N, number = labels.values, len(labels.values)
    batch_N = rng.integers(max(12, number // 4), size=number)
    # An effect of the day of collection, as of a batch of extractions.
    effects = np.exp(rng.normal(0, batch, (batch_N.max() + 1, counts.shape[1])))
    reads_NU = rng.poisson(counts.toarray() * effects[batch_N])
    reads_NU[:, 0] += 1
    counts = sparse.csr_array(reads_NU)
    stages_N = rng.integers(9, size=number)
    columns = {
        "stage": [
            f"stage {chr(65 + int(v) % 26)}{s}" for v, s in zip(values_N, stages_N, strict=True)
        ],
        "when": [str(date(2014, 1, 3) + timedelta(days=3 * int(k))) for k in batch_N],
        "category": [f"site {k}" for k in rng.integers(25, size=number)],
        "follows": [
            str(int(v))
            for v in np.rint(values_N / max(np.ptp(values_N), 1) * 20 + rng.normal(0, 3, number))
        ],
        "birth": [
            str(date(1950, 1, 1) + timedelta(days=int(k))) for k in rng.integers(200, size=number)
        ],
    }
    if labels.type == "regression":
        columns |= {
            "weeks": [str(int(v / 7)) for v in values_N],
            "months": [f"{int(v / 30)} months" for v in values_N],
            "date": [str(date(2000, 1, 1) + timedelta(days=10 * int(v / 10))) for v in values_N],
            "years": [f"{v / 365:.1f}" for v in values_N],
            "back": [str(40 - int(v / 25)) for v in values_N],
        }
    known = Communities.of(counts, labels)
    return any(alikeness(*column, columns, known, labels) for column in columns.items()), np.nan


def _birth(k: int) -> str:
    return str(date(1940, 1, 10) + timedelta(days=397 * k % 14600))


FORMS: dict[str, Callable[[int], str]] = {
    "whole numbers": lambda k: str(100 + k),
    "dates of birth": _birth,
    "12-4-31": lambda k: f"{12 + k // 28}-4-{k % 28 + 1}",
    "names": lambda k: f"P{k}",
}


def simulated_subjects(rng: np.random.Generator, sigma: float, form: str) -> tuple[bool, float]:
    """Return whether 12 to 60 subjects of two to five samples are found; `sigma` is theirs."""
    subjects = int(rng.integers(12, 61))
    subject_N = np.repeat(np.arange(subjects), rng.integers(2, 6, subjects))
    logs_NU = rng.normal(0, sigma, (subjects, ASVS))[subject_N]
    counts = communities(rng, logs_NU + rng.normal(0, 1.5, (len(subject_N), ASVS)))
    return subjects_found(rng, counts, subject_N, drawn_target(rng, subject_N), form)


def drawn_target(rng: np.random.Generator, subject_N: Rows) -> Labels:
    """Draw a class or number of each subject, or of each sample."""
    subjects = int(subject_N.max()) + 1
    kind = rng.integers(4)
    if kind == 0:
        return Labels.of(
            rng.integers(2, size=subjects)[subject_N].astype(np.float64), ("a", "b"), None
        )
    if kind == 1:
        return Labels.of(rng.integers(2, size=len(subject_N)).astype(np.float64), ("a", "b"), None)
    if kind == 2:
        return Labels.of(rng.integers(20, 80, subjects)[subject_N].astype(np.float64), (), None)
    return Labels.of(rng.normal(size=len(subject_N)), (), None)


def subjects_found(
    rng: np.random.Generator,
    counts: sparse.csr_array,
    subject_N: Rows,
    labels: Labels,
    form: str,
    name: str = "code",
) -> tuple[bool, float]:
    """Return whether the subjects are found, and how often the nearest sample is of the same."""
    order = rng.permutation(int(subject_N.max()) + 1)
    texts = [FORMS[form](int(order[k])) for k in subject_N]
    known = Communities.of(counts, labels)
    code_R, nearest_R, _ = known.nearest(subject_N, subject_N >= 0, all_samples=False)
    return alikeness(name, texts, {name: texts}, known, labels) > 0, float(
        np.mean(code_R == nearest_R)
    ) if len(code_R) else np.nan


PLAIN = ("goat", "llama", "ewe code", "pig", "toddler", "tag", "Woman", "barcode of cow")


def longitudinal(
    rng: np.random.Generator, each: int, sigma: float, subjects: tuple[int, int]
) -> tuple[bool, float]:
    """Return whether subjects with a median of `each` samples are named, and no other column."""
    people = int(rng.integers(*subjects))
    sizes = rng.integers(max(2, each * 3 // 4), each * 5 // 4 + 1, people)
    subject_N = np.repeat(np.arange(people), sizes)
    days = int(sizes.max()) * int(rng.integers(1, 4))
    day_N = np.concatenate([rng.permutation(days)[:size] for size in sizes])
    drift_NU = rng.normal(0, 0.5, ASVS) * (day_N[:, None] / days - 0.5)
    logs_NU = rng.normal(0, sigma, (people, ASVS))[subject_N] + drift_NU
    counts = communities(rng, logs_NU + rng.normal(0, 1.5, logs_NU.shape))
    labels = drawn_target(rng, subject_N)
    if rng.integers(4) == 0:
        labels = Labels.of(day_N.astype(np.float64), (), None)
    name, form = str(rng.choice(PLAIN)), list(FORMS)[rng.integers(len(FORMS))]
    order = rng.permutation(people)
    columns = {
        name: [FORMS[form](int(order[k])) for k in subject_N],
        "sex": ["fm"[k] for k in rng.integers(2, size=people)[subject_N]],
        "arm": [f"arm {k}" for k in rng.integers(3, size=people)[subject_N]],
        "age": [str(k) for k in rng.integers(20, 80, people)[subject_N]],
        "day": [str(k) for k in day_N],
        "weather": [f"w{k}" for k in rng.integers(14, size=len(day_N))],
    }
    known = Communities.of(counts, labels)
    ratios = {column[0]: alikeness(*column, columns, known, labels) for column in columns.items()}
    return max(ratios, key=ratios.__getitem__) == name and ratios[name] > 0, np.nan


FACTORS: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "sites": ((3, 19), ("site", "body_site", "sample type", "env_biome")),
    "studies": ((2, 16), ("study", "Project", "cohort", "country")),
    "arms": ((2, 9), ("arm", "treatment", "diet", "group")),
    "months": ((12, 13), ("month", "season", "collection month")),
    "batches": ((4, 25), ("batch", "plate", "sequencing run")),
}
"""Numbers and names of what samples of different persons share."""


def independent_of(rng: np.random.Generator, factor: str, naming: str) -> tuple[bool, float]:
    """Return whether a column is named where 6 to 60 persons share a value of a factor."""
    limits, names = FACTORS[factor]
    values, each = int(rng.integers(*limits)), int(rng.integers(6, 61))
    sizes = rng.integers(max(2, each // 2), each * 3 // 2 + 1, values)
    value_N = np.repeat(np.arange(values), sizes)
    number, sigma = len(value_N), float(rng.choice([0.4, 0.7, 1.0, 1.5]))
    logs_NU = rng.normal(0, sigma, (values, ASVS))[value_N]
    counts = communities(rng, logs_NU + rng.normal(0, 1.5, logs_NU.shape))
    name = str(rng.choice(names if naming == "named" else PLAIN))
    columns = {
        name: [f"v{k}" for k in value_N],
        "code": [f"c{k}" for k in rng.integers(int(rng.integers(12, 41)), size=number)],
        "age": [str(k) for k in rng.integers(20, 80, number)],
        "day": [str(k) for k in rng.integers(int(rng.integers(3, 200)), size=number)],
    }
    if naming != "plain name, no sex":
        columns["sex"] = ["fm"[k] for k in rng.integers(2, size=number)]
    labels = drawn_target(rng, value_N)
    known = Communities.of(counts, labels)
    return any(alikeness(*column, columns, known, labels) for column in columns.items()), np.nan


def real_studies(folder: Path) -> dict[str, Kind]:
    """Return the kinds of studies that are drawn from real samples."""
    kinds: dict[str, Kind] = {}
    with as_library():
        tables = {
            name: read_table(folder / name / "table.biom") for name in ("ravel", "ecam", "oral")
        }
        metadata = {
            name: read_metadata(folder / name / "metadata.tsv") for name in ("ravel", "ecam")
        }
    ids = {name: list(table.sample_ids) for name, table in tables.items()}
    women = {
        name: metadata["ravel"].values(name, ids["ravel"]) for name in metadata["ravel"].columns
    }

    def persons(rng: np.random.Generator, column: str, classes: bool) -> tuple[bool, float]:
        texts = women[column]
        rows = rng.permutation(np.flatnonzero(texts != ""))[: int(rng.integers(60, 301))]
        values, names = as_numbers(texts[rows].tolist()), tuple(sorted(set(texts[rows])))
        if classes:
            values = np.unique(texts[rows], return_inverse=True)[1].astype(np.float64)
        labels = Labels.of(values, names if classes else (), None)
        return independent(sparse.csr_array(tables["ravel"].counts[rows]), labels, rng)

    for column, classes in (
        ("Ethnic_Group", True),
        ("Community_group", True),
        ("Nugent_score", False),
    ):
        kinds[f"ravel, {column}"] = partial(persons, column=column, classes=classes)
    infants = metadata["ecam"].values("host_subject_id", ids["ecam"])
    infants = np.where(metadata["ecam"].values("mom_child", ids["ecam"]) == "C", infants, "")
    months = as_numbers(metadata["ecam"].values("month_of_life", ids["ecam"]).tolist())
    delivery = metadata["ecam"].values("delivery", ids["ecam"]) == "Vaginal"
    mouths = np.array([(PEOPLE.findall(name) or [""])[0] for name in ids["oral"]])

    def repeated(
        rng: np.random.Generator, study: str, form: str, few: bool, many: bool = False
    ) -> tuple[bool, float]:
        subjects = infants if study == "ecam" else mouths
        people = np.unique(subjects[subjects != ""])
        chosen = rng.permutation(people)[: 3 if few else int(rng.integers(15, len(people) + 1))]
        most = 30 if few else int(rng.integers(6, 31)) if many else int(rng.integers(2, 6))
        rows = np.concatenate(
            [rng.permutation(np.flatnonzero(subjects == k))[:most] for k in chosen]
        )
        subject_N = np.unique(subjects[rows], return_inverse=True)[1]
        labels = drawn_target(rng, subject_N)
        if study == "ecam" and (target := rng.integers(3)) < 2:
            labels = Labels.of(months[rows], (), None)
            if target and not few:
                labels = Labels.of(delivery[rows].astype(np.float64), ("c", "v"), None)
        counts = sparse.csr_array(tables[study].counts[rows])
        return subjects_found(rng, counts, subject_N, labels, form, "subject" if few else "code")

    for study in ("ecam", "oral"):
        for form in FORMS:
            kinds[f"{study}, {form}"] = partial(repeated, study=study, form=form, few=False)
    kinds["ecam, up to 6 to 30 samples each"] = partial(
        repeated, study="ecam", form="names", few=False, many=True
    )
    kinds["ecam, 3 infants of up to 30 samples"] = partial(
        repeated, study="ecam", form="names", few=True
    )
    return kinds


if __name__ == "__main__":
    main()
