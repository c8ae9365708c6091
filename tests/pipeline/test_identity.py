"""Samples and subjects that trained a model are recognized under other ids and in other studies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from aam.contract.errors import DataError
from aam.data.identity import Abundances
from aam.evaluation.scores import Scores
from tests.support.commands import aam, read

Capture = pytest.CaptureFixture[str]

ASVS, LENGTH = 60, 80


def sequences(rng: np.random.Generator) -> list[str]:
    return ["".join(rng.choice(list("ACGT"), LENGTH)) for _ in range(ASVS)]


def communities(rng: np.random.Generator, number: int) -> np.ndarray:
    """Return expected shares of `number` subjects, which differ as those of people do."""
    shares = rng.lognormal(0, 2, (number, ASVS)) * (rng.random((number, ASVS)) < 0.5)
    return shares / shares.sum(axis=1, keepdims=True)


def write(folder: Path, name: str, counts: np.ndarray, asvs: list[str], **columns: object) -> Path:
    """Write NAME.tsv and NAME.metadata.tsv; samples are called by a prefix of the columns."""
    folder.mkdir(exist_ok=True)
    ids = columns.pop("ids", None) or [f"{name}{row}" for row in range(len(counts))]
    table = pd.DataFrame(counts.T, index=pd.Index(asvs, name="#OTU ID"), columns=ids)
    table.to_csv(folder / f"{name}.tsv", sep="\t")
    metadata = pd.DataFrame(columns, index=pd.Index(ids, name="sample-id"))
    metadata.to_csv(folder / f"{name}.metadata.tsv", sep="\t")
    return folder / f"{name}.tsv"


def files(folder: Path, name: str) -> tuple[object, ...]:
    metadata = folder / f"{name}.metadata.tsv"
    return ("--table", folder / f"{name}.tsv", "--metadata", metadata, "--metadata-column", "y")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], np.ndarray]:
    """A kernel of 30 samples; its folder, ASVs and counts."""
    folder, rng = tmp_path_factory.mktemp("identity"), np.random.default_rng(0)
    asvs = sequences(rng)
    counts = np.stack([rng.multinomial(3000, shares) for shares in communities(rng, 30)])
    write(folder, "s", counts, asvs, y=rng.normal(size=30).round(3))
    run = folder / "run"
    assert aam("train", *files(folder, "s"), "--members", "kernel", "--output-dir", run) == 0
    return folder, asvs, counts


CHANGES = ["renamed", "cut", "relative", "filtered"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_training_sample_under_another_id_is_no_new_one(
    trained: tuple[Path, list[str], np.ndarray], tmp_path: Path, change: str
) -> None:
    folder, asvs, counts = trained
    counts, asvs = counts.astype(float), list(asvs)
    if change == "cut":
        asvs = [dna[:60] for dna in asvs]
    if change == "filtered":  # ASVs in fewer than a third of the samples
        common = (counts > 0).mean(axis=0) > 1 / 3
        counts, asvs = counts[:, common], [dna for dna, c in zip(asvs, common, strict=True) if c]
    if change == "relative":
        counts = (counts / counts.sum(axis=1, keepdims=True)).round(8)
    write(tmp_path, "t", counts, asvs, y=np.zeros(30))
    output = tmp_path / "p.tsv"
    assert aam("predict", "--model", folder / "run", "--table", tmp_path / "t.tsv",
               "--output", output) == 0  # fmt: skip
    assert (read(output)["split"] == "train").mean() > 0.85


def test_a_copy_without_asvs_of_most_other_reads() -> None:
    """One ASV has most reads, and a filter removes the next two: the counts are still equal."""
    rng = np.random.default_rng(10)
    people = rng.lognormal(0, 1, (40, 8)) * [50, 9, 8, 3, 2, 1, 0.7, 0.5]
    shares = people / people.sum(axis=1, keepdims=True)
    counts = np.stack([rng.multinomial(8000, row) for row in shares])
    again = np.stack([rng.multinomial(8000, row) for row in shares])
    few = np.array([0, 3, 4, 5, 6, 7])
    whole = Abundances.from_counts(sparse.csr_array(counts), np.arange(8))
    copies, others = (Abundances.from_counts(sparse.csr_array(c[:, few]), few)
                      for c in (counts, again))  # fmt: skip
    pairs = whole.equal_pairs(copies)
    assert len(pairs) >= 38 and (pairs[:, 0] == pairs[:, 1]).all()
    assert not len(whole.equal_pairs(others))


def test_other_reads_of_the_same_communities_are_new(
    trained: tuple[Path, list[str], np.ndarray], tmp_path: Path
) -> None:
    """A second sequencing is no copy: its counts differ by chance."""
    folder, asvs, counts = trained
    rng = np.random.default_rng(1)
    again = np.stack([rng.multinomial(3000, row / row.sum()) for row in counts])
    write(tmp_path, "t", again, asvs, y=np.zeros(30))
    output = tmp_path / "p.tsv"
    assert aam("predict", "--model", folder / "run", "--table", tmp_path / "t.tsv",
               "--output", output) == 0  # fmt: skip
    assert set(read(output)["split"]) == {"new"}


def test_copies_of_training_samples_are_not_scored(
    trained: tuple[Path, list[str], np.ndarray], tmp_path: Path, capsys: Capture
) -> None:
    folder, asvs, counts = trained
    rng = np.random.default_rng(2)
    others = np.stack([rng.multinomial(3000, shares) for shares in communities(rng, 10)])
    y = pd.read_csv(folder / "s.metadata.tsv", sep="\t")["y"].tolist()
    write(tmp_path, "copies", counts, asvs, y=y)
    evaluate = ("evaluate", "--model", folder / "run", "--output", tmp_path / "e")
    assert aam(*evaluate, *files(tmp_path, "copies")) == DataError.status
    assert "30 of them, by id or by equal reads" in " ".join(capsys.readouterr().err.split())
    y = [*y, *rng.normal(size=10)]
    write(tmp_path, "both", np.concatenate([counts, others]), asvs, y=y)
    assert aam(*evaluate, *files(tmp_path, "both")) == 0
    assert len(read(tmp_path / "e" / "predictions.tsv")) == 10


def test_copies_stay_on_one_side_of_a_split(tmp_path: Path, capsys: Capture) -> None:
    """Labels are noise; with the copies divided R² would be near 1."""
    rng = np.random.default_rng(3)
    counts = np.stack([rng.multinomial(2000, shares) for shares in communities(rng, 20)])
    y = rng.normal(size=20).round(3)
    write(tmp_path, "s", np.concatenate([counts, counts]), sequences(rng), y=[*y, *y])
    train = ("train", *files(tmp_path, "s"), "--members", "kernel", "--folds", 5)
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
    assert "20 (s0 and s20, s1 and s21" in " ".join(capsys.readouterr().err.split())
    splits = read(tmp_path / "run" / "splits.tsv")
    sample = splits["sample-id"].str[1:].astype(int) % 20
    assert splits.groupby([splits["fold"], sample])["split"].nunique().max() == 1
    scores = Scores.read(tmp_path / "run" / "scores.json")
    r2 = scores.models["ensemble"].metrics["r2"].value
    assert r2 is not None and r2 < 0.3 and not scores.is_better
    # A file of splits that divides them: the copy of a held-out sample leaves the training.
    lines = (tmp_path / "run" / "splits.tsv").read_text().splitlines()
    divided = [line.rpartition("\t")[0] + "\t" for line in lines[1:] if line.split("\t")[1] == "1"]
    tests = [line for line in divided if line.split("\t")[2] == "test"]
    moved = [line for line in divided if line not in tests[1:]]
    moved += [line.replace("\ttest\t", "\ttrain\t") for line in tests[1:]]
    (tmp_path / "divided.tsv").write_text("\n".join([lines[0], *moved]) + "\n")
    again = (*train[:-2], "--splits", tmp_path / "divided.tsv")
    assert aam(*again, "--output-dir", tmp_path / "again") == 0
    assert "subject is held out: 1 samples" in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def resequenced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three studies of 24 samples; 16 subjects of the first are in the others, y is noise."""
    folder, rng = tmp_path_factory.mktemp("resequenced"), np.random.default_rng(4)
    asvs, people = sequences(rng), communities(rng, 40)
    labels = rng.integers(0, 2, 40)
    for k, name in enumerate("abc"):
        who = [*range(16), *range(16 + 8 * k, 24 + 8 * k)]
        names = [f"P{i}" for i in who]
        depth = [1000, 2500, 4000][k]
        counts = np.stack([rng.multinomial(depth, people[i]) for i in who])
        y = ["case" if labels[i] else "control" for i in who]
        write(folder, name, counts, asvs, y=y, subject=names)
    tables = [word for k in "abc" for word in ("--table", folder / f"{k}.tsv")]
    tables += [word for k in "abc" for word in ("--metadata", folder / f"{k}.metadata.tsv")]
    assert aam("prepare", *tables, "--studies", "a,b,c", "--output", folder / "abc.aam") == 0
    return folder


@pytest.mark.parametrize("values", ["auto", "distinct"])
def test_a_subject_of_two_studies_is_unseen_in_neither(
    resequenced: Path, tmp_path: Path, values: str, capsys: Capture
) -> None:
    store = resequenced / "abc.aam"
    train = ("train", store, store, "y", "--members", "kernel", "--study-column", "study")
    train = (*train, "--group-column", "subject", "--group-values", values)
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
    printed = " ".join(capsys.readouterr().err.split())
    splits = read(tmp_path / "run" / "splits.tsv")
    subject = splits["group"].str.split(" ").str[0]
    held_out = [
        set(subject[(splits["fold"] == k) & (splits["split"] == "test")]) for k in (1, 2, 3)
    ]
    trained = [set(subject[(splits["fold"] == k) & (splits["split"] != "test")]) for k in (1, 2, 3)]
    shared = [one & two for one, two in zip(held_out, trained, strict=True)]
    scores = Scores.read(tmp_path / "run" / "scores.json")
    if values == "auto":
        assert "are one subject, judged by their samples" in printed and not any(shared)
        assert not scores.is_better
    else:
        assert all(len(names) == 16 for names in shared)


@pytest.mark.medium
def test_subjects_of_several_studies_that_are_not_named_give_no_praise(
    resequenced: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Without --group-column they are found, and the verdict is that with them kept together."""
    store = resequenced / "abc.aam"
    train = ("train", store, store, "y", "--members", "kernel", "--study-column", "study")
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
    scores = Scores.read(tmp_path / "run" / "scores.json")
    assert scores.repeated_samples is not None and not scores.is_better
    assert "add --group-column subject" in " ".join(capsys.readouterr().err.split())


def test_subjects_that_trained_are_not_scored(
    resequenced: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The second study has subjects of the first, under new ids and at another depth."""
    train = ("train", *files(resequenced, "a"), "--group-column", "subject", "--members", "kernel")
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
    evaluate = ("evaluate", "--model", tmp_path / "run", *files(resequenced, "b"))
    assert aam(*evaluate, "--output", tmp_path / "e") == 0
    assert "since their subjects trained this model: 16" in " ".join(
        capsys.readouterr().err.split()
    )
    assert len(read(tmp_path / "e" / "predictions.tsv")) == 8
    other = (*evaluate, "--group-column", "subject", "--group-values", "distinct", "--overwrite")
    assert aam(*other, "--output", tmp_path / "e") == 0
    assert len(read(tmp_path / "e" / "predictions.tsv")) == 24


def test_names_of_other_people_are_other_subjects(
    resequenced: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Equal names, as of studies that count their subjects from 1: all are scored."""
    rng = np.random.default_rng(5)
    table = pd.read_csv(resequenced / "a.tsv", sep="\t", index_col=0)
    counts = np.stack([rng.multinomial(2000, shares) for shares in communities(rng, 24)])
    names = pd.read_csv(resequenced / "a.metadata.tsv", sep="\t")["subject"].tolist()
    y = ["case", "control"] * 12
    write(tmp_path, "n", counts, list(table.index), y=y, subject=names)
    train = ("train", *files(resequenced, "a"), "--group-column", "subject", "--members", "kernel")
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
    evaluate = ("evaluate", "--model", tmp_path / "run", *files(tmp_path, "n"))
    assert aam(*evaluate, "--group-column", "subject", "--output", tmp_path / "e") == 0
    assert len(read(tmp_path / "e" / "predictions.tsv")) == 24


@pytest.mark.medium
def test_subjects_of_a_model_without_group_column(tmp_path: Path, capsys: Capture) -> None:
    """Repeated subjects that the training finds are stored; others are "not known", never new."""
    rng = np.random.default_rng(7)
    asvs, people = sequences(rng), communities(rng, 20)
    who = np.repeat(np.arange(20), 4)
    counts = np.stack([rng.multinomial(1500, people[i]) for i in who])
    y, part = rng.normal(size=20)[who].round(3), np.arange(80) % 4 < 2
    names = np.array([f"P{i}" for i in who])
    write(tmp_path, "s", counts[part], asvs, y=y[part], subject=names[part])
    write(tmp_path, "t", counts[~part], asvs, y=y[~part], infant_id=names[~part])
    train = ("train", *files(tmp_path, "s"), "--members", "kernel")
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
    evaluate = ("evaluate", *files(tmp_path, "t"), "--output", tmp_path / "e", "--model")
    for words in ((), ("--group-column", "infant_id")):
        assert aam(*evaluate, tmp_path / "run", *words) == DataError.status
        assert "the subjects of 40, by 'infant_id'" in " ".join(capsys.readouterr().err.split())
    metadata = tmp_path / "s.metadata.tsv"
    pd.read_csv(metadata, sep="\t").drop(columns="subject").to_csv(metadata, sep="\t", index=False)
    assert aam(*train, "--output-dir", tmp_path / "unnamed") == 0
    assert aam(*evaluate, tmp_path / "unnamed") == 0
    assert "trained without --group-column" in " ".join(capsys.readouterr().err.split())


def test_equal_ids_of_other_reads_are_other_samples(
    trained: tuple[Path, list[str], np.ndarray], tmp_path: Path
) -> None:
    """Two studies call their samples s0, s1, ...; the same samples at another depth are no new."""
    folder, asvs, counts = trained
    rng = np.random.default_rng(8)
    others = np.stack([rng.multinomial(3000, shares) for shares in communities(rng, 30)])
    rarefied = np.stack([rng.multivariate_hypergeometric(row, 1000) for row in counts])
    ids, output = [f"s{row}" for row in range(30)], tmp_path / "p.tsv"
    predict = ("predict", "--model", folder / "run", "--table", tmp_path / "t.tsv", "--overwrite")
    for table, split in ((others, "new"), (rarefied, "train")):
        write(tmp_path, "t", table, asvs, y=np.zeros(30), ids=ids)
        assert aam(*predict, "--output", output) == 0
        assert set(read(output)["split"]) == {split}


@pytest.mark.medium
def test_copies_of_asvs_of_different_lengths(tmp_path: Path) -> None:
    """A filter moves the median length; ASVs that begin alike are still not one."""
    rng = np.random.default_rng(9)
    long = ["".join(rng.choice(list("ACGT"), LENGTH)) for _ in range(ASVS // 2)]
    asvs = [*long, *(dna[:70] for dna in long)]
    counts = np.stack([rng.multinomial(3000, shares) for shares in communities(rng, 30)])
    write(tmp_path, "s", counts, asvs, y=rng.normal(size=30).round(3))
    train = ("train", *files(tmp_path, "s"), "--members", "kernel")
    assert aam(*train, "--output-dir", tmp_path / "run") == 0
    kept = [*range(20), *range(30, 60)]
    write(tmp_path, "t", counts[:, kept], [asvs[asv] for asv in kept], y=np.zeros(30))
    output = tmp_path / "p.tsv"
    assert aam("predict", "--model", tmp_path / "run", "--table", tmp_path / "t.tsv",
               "--output", output) == 0  # fmt: skip
    assert (read(output)["split"] == "train").mean() > 0.85


def test_a_copy_in_a_joined_study_is_left_out(tmp_path: Path, capsys: Capture) -> None:
    """The second study is the first without its rare ASVs, and ten samples of its own."""
    rng = np.random.default_rng(6)
    asvs = sequences(rng)
    counts = np.stack([rng.multinomial(3000, shares) for shares in communities(rng, 30)])
    write(tmp_path, "a", counts[:20], asvs)
    common = (counts > 0).mean(axis=0) > 0.4
    kept = [dna for dna, is_common in zip(asvs, common, strict=True) if is_common]
    write(tmp_path, "b", counts[:, common], kept)  # samples 20 to 29 are its own
    prepare = ("prepare", "--table", tmp_path / "a.tsv", "--table", tmp_path / "b.tsv")
    assert aam(*prepare, "--studies", "a,b", "--output", tmp_path / "s.aam") == 0
    assert "of an earlier study are left out: " in " ".join(capsys.readouterr().err.split())
    assert aam("inspect", tmp_path / "s.aam", "--json") == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    warned = [finding for finding in findings if finding["severity"] == "warning"]
    assert not [finding for finding in warned if finding["subject"] == "reads"]
