"""Repeated subjects are found by structure, and the score says how much they change it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import aam

SUBJECTS, ASVS = 40, 60


def write_study(
    folder: Path, subjects: int = SUBJECTS, each: int = 3, **columns: list[object]
) -> tuple[object, ...]:
    """Write samples of subjects, each with a community of its own; return the options."""
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(subjects), each)
    own = rng.lognormal(0, 2, (subjects, ASVS))
    counts = rng.poisson(20 * own[subject] * rng.lognormal(0, 0.3, (len(subject), ASVS)))
    counts[:, 0] += 1
    dna = ["".join(rng.choice(list("ACGT"), 40)) for _ in range(ASVS)]
    ids = [f"s{k}" for k in range(len(subject))]
    lines = ["#OTU ID\t" + "\t".join(ids)]
    lines += [
        f"{name}\t" + "\t".join(map(str, row)) for name, row in zip(dna, counts.T, strict=True)
    ]
    (folder / "table.tsv").write_text("\n".join(lines) + "\n")
    # The class of a subject is drawn at random: nothing can be learnt of a new one.
    classes = rng.permutation(subjects) % 2
    known: dict[str, list[object]] = {
        "class": [f"c{classes[k]}" for k in subject],
        "weight": [f"{60 + k / 7:.1f}" for k in subject],
        "day": [int(rng.integers(30)) for _ in subject],
    } | columns
    rows = [
        "\t".join([name, *(str(values[k]) for values in known.values())])
        for k, name in enumerate(ids)
    ]
    (folder / "m.tsv").write_text("\t".join(["sample-id", *known]) + "\n" + "\n".join(rows) + "\n")
    return ("--table", folder / "table.tsv", "--metadata", folder / "m.tsv")


def codes(order: np.ndarray) -> list[object]:
    return [int(order[k // 3]) for k in range(3 * SUBJECTS)]


@pytest.mark.medium
def test_the_column_is_named_first_and_the_score_with_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = np.random.default_rng(1).permutation(SUBJECTS) + 100
    args = write_study(tmp_path, code=codes(order), animal_part=[k % 3 + 0.5 for k in range(120)])
    given = ("--metadata-column", "class", "--classifier", "--members", "kernel")
    run = tmp_path / "run"
    assert aam("train", *args, *given, "--output-dir", run) == 0
    printed = capsys.readouterr().err
    first = next(line for line in printed.splitlines() if line.startswith("warning: "))
    assert "40 values of 'code'" in first and "--group-column code" in first
    assert printed.index(first) < printed.index("Data: 120 samples")
    assert "'code' determines" not in printed
    scores = json.loads((run / "scores.json").read_text())
    found = scores["repeated_samples"]
    assert found["column"] == "code"
    assert found["given"] > 0.8 > found["grouped"] + 0.1
    assert f"{found['grouped']:.3f}" in printed and f"{found['given']:.3f}" in printed
    # Interval and permutation test are those of known subjects.
    verdict = scores["verdict"]
    assert verdict["outcome"] == "not better" and verdict["lower"] > 0 and verdict["p"] < 0.05
    assert "is not shown to be better than the baseline" in verdict["sentence"]
    assert f"the kernel has AUC {found['grouped']:.3f}" in verdict["sentence"]
    # With the groups there is nothing left to say.
    apart = ("--group-column", "code", "--output-dir", tmp_path / "apart")
    assert aam("train", *args, *given, *apart) == 0
    assert "several similar samples" not in capsys.readouterr().err
    apart_scores = json.loads((tmp_path / "apart/scores.json").read_text())
    assert apart_scores["repeated_samples"] is None
    page = (run / "report.html").read_text()
    assert page.index("AUC of new subjects") < page.index("subjects seen in training")
    # Nor is the honest run "behind" the other one.
    assert aam("compare", run, tmp_path / "apart") == 0
    compared = " ".join(capsys.readouterr().out.split())
    assert "not comparable" in compared and "not for new subjects" in compared
    assert "behind" not in compared and "ahead" not in compared
    # Samples that one run takes for independent are units of the other's groups.
    assert f"over {SUBJECTS} groups" in compared
    # A model without skill is named where it is used.
    predicted = ("--output", tmp_path / "p.tsv")
    assert aam("predict", "--model", run, args[0], args[1], *predicted) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "On new subjects of its own study it is not shown to be better than the baseline" in said
    assert f"(AUC {found['grouped']:.3f})" in said


def printed_by_inspect(
    capsys: pytest.CaptureFixture[str], args: tuple[object, ...], *target: object
) -> str:
    assert aam("inspect", args[1], *args[2:], "--metadata-column", *target) == 0
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(
    "identifier",
    [
        lambda k: k,
        lambda k: f"{k // 28 + 12}-4-{k % 28 + 1}",
        lambda k: date(1940, 1, 10) + timedelta(days=397 * k),
        lambda k: f"P{k}",
    ],
)
def test_any_form_of_identifiers_is_found(
    identifier: Callable[[int], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = np.random.default_rng(1).permutation(SUBJECTS)
    args = write_study(tmp_path, code=[identifier(int(order[k // 3])) for k in range(120)])
    for target in (("class", "--classifier"), ("day",)):
        printed = printed_by_inspect(capsys, args, *target)
        assert "40 values of 'code' have several similar samples" in printed


def test_few_subjects_of_many_samples_are_found_by_their_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five subjects of 24 samples, whose class varies; sites of as many samples are no subjects."""
    people = [k // 24 for k in range(120)]
    args = write_study(
        tmp_path, Subject_ID=list(people), site=[f"site {k}" for k in people],
        kind=[f"c{k % 2}" for k in range(120)],
    )  # fmt: skip
    rng = np.random.default_rng(3)
    own = rng.lognormal(0, 1, (5, ASVS))
    lines = (tmp_path / "table.tsv").read_text().splitlines()
    counts = rng.poisson(20 * own[people] * rng.lognormal(0, 0.5, (120, ASVS))) + 1
    rows = ["\t".join([line.split("\t")[0], *map(str, row)])
            for line, row in zip(lines[1:], counts.T, strict=True)]  # fmt: skip
    (tmp_path / "table.tsv").write_text("\n".join([lines[0], *rows]) + "\n")
    printed = printed_by_inspect(capsys, args, "kind", "--classifier")
    assert "5 values of 'Subject_ID' have several similar samples" in printed
    metadata = (tmp_path / "m.tsv").read_text().replace("Subject_ID", "part", 1)
    (tmp_path / "m.tsv").write_text(metadata)
    assert "several similar samples" not in printed_by_inspect(capsys, args, "kind", "--classifier")


@pytest.mark.medium
def test_subjects_of_another_study_are_the_groups_of_its_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples of a subject are not independent, whether or not --group-column names it."""
    args = write_study(tmp_path, goat=[f"G{k // 3}" for k in range(120)])
    header, *rows = (tmp_path / "m.tsv").read_text().splitlines()
    for name, half in (("m.tsv", rows[:60]), ("other.tsv", rows[60:])):
        (tmp_path / name).write_text("\n".join([header, *half]) + "\n")
    target = ("--metadata-column", "class", "--classifier")
    options = (*target, "--members", "kernel", "--group-column", "goat")
    assert aam("train", *args, *options, "--output-dir", tmp_path / "run") == 0
    capsys.readouterr()
    other = ("--model", tmp_path / "run", *args[:3], tmp_path / "other.tsv", *target[:2])
    assert aam("evaluate", *other, "--output", tmp_path / "found") == 0
    printed = " ".join(capsys.readouterr().err.split())
    assert "20 values of 'goat' have several similar samples" in printed
    assert "--group-column goat" in printed
    named = ("--group-column", "goat", "--output", tmp_path / "named")
    assert aam("evaluate", *other, *named) == 0
    assert "several similar samples" not in capsys.readouterr().err
    runs = [json.loads((tmp_path / run / "scores.json").read_text()) for run in ("found", "named")]
    assert runs[0]["verdict"] == runs[1]["verdict"]
    assert runs[0]["verdict"]["units"] == "20 groups of goat"
    splits = [(tmp_path / run / "splits.tsv").read_text() for run in ("found", "named")]
    assert splits[0] == splits[1]


def test_subjects_of_many_samples_are_found_and_sites_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty subjects of 22 samples, under a plain name; as many wards of persons of both sexes."""
    people = [k // 22 for k in range(440)]
    kind: list[object] = [f"c{k % 2}" for k in range(440)]
    goats: list[object] = [f"G{k}" for k in people]
    args = write_study(tmp_path, 20, 22, kind=kind, goat=goats)
    printed = printed_by_inspect(capsys, args, "kind", "--classifier")
    assert "20 values of 'goat' have several similar samples" in printed
    assert "--group-column goat" in printed
    by_person: list[object] = ["fm"[k % 3 == 0] for k in range(440)]
    for name, more in (("site", {}), ("ward", {"sex": by_person})):
        args = write_study(tmp_path, 20, 22, kind=kind, **{name: goats}, **more)
        assert "several similar samples" not in printed_by_inspect(
            capsys, args, "kind", "--classifier"
        )


def test_few_subjects_are_found_by_the_days_of_their_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight subjects sampled once a day; at eight places several samples are taken on a day."""
    rng = np.random.default_rng(4)
    goats: list[object] = [f"G{k // 24}" for k in range(192)]
    kind: list[object] = [f"c{k % 2}" for k in range(192)]
    once: list[object] = [k % 24 for k in range(192)]
    several: list[object] = [int(k) for k in rng.integers(24, size=192)]
    for days, is_found in ((once, True), (several, False)):
        args = write_study(tmp_path, 8, 24, kind=kind, goat=goats, since=days)
        printed = printed_by_inspect(capsys, args, "kind", "--classifier")
        assert ("8 values of 'goat' have several similar samples" in printed) == is_found


@pytest.mark.medium
def test_columns_of_independent_samples_are_not_named() -> None:
    """Of texts that refine the class, other units of the target, days of collection, at most 1 in
    50 studies; at the similarity of real subjects 9 in 10 are found."""
    script = Path(__file__).parents[2] / "benchmarks" / "repeated_subjects.py"
    benchmark = runpy.run_path(str(script))
    for target in ("classes", "number"):
        for effect in (0.0, 1.5):
            named = [
                benchmark["simulated_persons"](np.random.default_rng([9, k]), target, effect)[0]
                for k in range(50)
            ]
            assert sum(named) <= 1
    found = [
        benchmark["simulated_subjects"](np.random.default_rng([9, k]), 1.0, "12-4-31")[0]
        for k in range(50)
    ]
    assert sum(found) >= 45
    for each in (2, 22):
        found = [
            benchmark["longitudinal"](np.random.default_rng([9, k]), each, 1.0, (12, 31))[0]
            for k in range(10)
        ]
        assert sum(found) >= 9
    for factor in ("sites", "studies", "months", "batches"):
        named = [
            benchmark["independent_of"](np.random.default_rng([9, k]), factor, "plain name")[0]
            for k in range(10)
        ]
        assert sum(named) <= 1


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_measures_and_other_forms_of_the_target_are_no_subjects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(2)
    number = rng.permutation(SUBJECTS)
    columns: dict[str, list[object]] = {
        # A measure of the subject, in whole numbers of which neighbours are alike.
        "host_animal_percent": [f"{int(number[k // 3])}.5" for k in range(120)],
        "host_animal_limit": ["inf" if k < 9 else int(number[k // 3]) for k in range(120)],
        "host_subject_date": [f"2014-0{k % 9 + 1}-{k // 9 + 10}" for k in range(120)],
    }
    args = write_study(tmp_path, **columns)
    for column in (("day",), ("class", "--classifier")):
        assert aam("inspect", args[1], *args[2:], "--metadata-column", *column, "--json") == 0
        printed = capsys.readouterr().out
        assert "Data: 120 samples" in printed and "several similar samples" not in printed
