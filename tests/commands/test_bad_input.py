"""Bad input: an error of one sentence that names it, its exit status, and no partial output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import biom
import pandas as pd
import pytest
import torch

from aam.training.model_config import FORMAT
from tests.support.commands import TINY, aam, pretrain, read, train

ROOT = Path(__file__).parents[2]
NOBODY = 65534
USAGE, DATA, NO_INPUT, UNAVAILABLE, CANNOT_CREATE = 64, 65, 66, 69, 73


@dataclass(frozen=True)
class Bench:
    """A study to spoil, a folder for what is spoilt, and a run that must not be written.

    Attributes:
        good: folder of the study.
        work: where spoilt files go.
        counts: features x samples.
        rows: lines of the metadata as cells, header first.
        newick: the tree.
    """

    good: Path
    work: Path
    counts: pd.DataFrame
    rows: list[list[str]]
    newick: str

    @property
    def out(self) -> Path:
        """The run folder."""
        return self.work / "run"

    def table(self, counts: pd.DataFrame, name: str = "table.tsv") -> Path:
        """Write a feature table."""
        counts.to_csv(self.work / name, sep="\t", index_label="#OTU ID")
        return self.work / name

    def text(self, name: str, text: str) -> Path:
        """Write a file."""
        (self.work / name).write_text(text)
        return self.work / name

    def metadata(self, rows: list[list[str]]) -> Path:
        """Write metadata."""
        return self.text("metadata.tsv", "".join("\t".join(row) + "\n" for row in rows))

    def column(self, values: list[str]) -> list[str | Path]:
        """Write metadata with a column x; returns the words that ask for it."""
        header, *rows = self.rows
        longer = [[*row, value] for row, value in zip(rows, values, strict=True)]
        path = self.metadata([[*header, "x"], *longer])
        return ["--metadata", path, "--metadata-column", "x"]

    def pretrain(self, *words: object, tree: bool = True) -> int:
        """Run `aam pretrain`; later words win."""
        given = ("--tree", self.good / "tree.nwk") if tree else ()
        return pretrain(self.good, self.out, *given, *words)

    def train(self, *words: object) -> int:
        """Run `aam train`; later words win."""
        return train(self.good, self.out, *words)


@pytest.fixture
def bench(study_dir: Path, tmp_path: Path) -> Bench:
    counts = biom.load_table(str(study_dir / "table.biom")).to_dataframe(dense=True).astype(int)
    lines = (study_dir / "metadata.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    newick = (study_dir / "tree.nwk").read_text()
    return Bench(study_dir, tmp_path, counts, rows, newick)


@pytest.fixture(scope="module")
def trained(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert train(study_dir, folder, "--epochs", 2) == 0
    return folder


@pytest.fixture(scope="module")
def pretrained(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    assert pretrain(study_dir, folder, "--tree", study_dir / "tree.nwk") == 0
    return folder


Refused = Callable[..., str]


@pytest.fixture
def refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Check a refusal: the status, the words in one sentence, and no run folder."""

    def check(status: int, expected: int, *words: str, folder: Path | None = None) -> str:
        shown = capsys.readouterr().err
        assert status == expected, shown
        [sentence] = [line for line in shown.splitlines() if line.startswith("aam: ")]
        assert sentence == shown.splitlines()[-1]
        for word in words:
            assert word in sentence
        assert sentence.endswith((".", "?"))
        assert not (folder or bench.out).exists()
        return sentence

    return check


def short(name: str) -> str:
    """A long id as messages show it."""
    return name if len(name) <= 40 else f"{name[:37]}..."


# Ids that do not meet


def test_table_and_metadata_without_a_common_sample(bench: Bench, refused: Refused) -> None:
    path = bench.table(bench.counts.add_prefix("X"))
    words = ("no sample in common", "36 (XS01, XS02, XS03, XS04, XS05, ...)",
             "36 (S01, S02, S03, S04, S05, ...)")  # fmt: skip
    refused(bench.train("--table", path), DATA, *words)


def test_samples_without_metadata_are_counted(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.train("--metadata", bench.metadata(bench.rows[:-3])) == 0
    assert "Samples left out: 3 of 36 (3 without metadata)" in capsys.readouterr().err


def test_tree_without_any_asv_of_the_table(bench: Bench, refused: Refused) -> None:
    path = bench.table(bench.counts.rename(index=lambda name: "TT" + name))
    words = ("None of the table's features is in the tree", "90 (TT", "tree.nwk' has 90")
    refused(bench.pretrain("--table", path), DATA, *words)


def test_tree_that_lacks_asvs(
    bench: Bench, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    names = list(bench.counts.index[:7])
    path = bench.table(bench.counts.rename(index={name: "TT" + name for name in names}))
    words = ("not in the tree: 7 (", *(short("TT" + name) for name in sorted(names)[:2]),
             ", ...) of 90", "--drop-missing-asvs")  # fmt: skip
    refused(bench.pretrain("--table", path), DATA, *words)
    assert bench.pretrain("--table", path, "--drop-missing-asvs") == 0
    assert "Features that are not in the tree are left out: 7" in capsys.readouterr().err


def test_matrix_that_lacks_samples(bench: Bench, refused: Refused) -> None:
    ids = list(bench.counts.columns[:29])
    matrix = pd.DataFrame(0.0, index=ids, columns=ids)
    matrix.to_csv(bench.work / "m.tsv", sep="\t", index_label="")
    words = ("not in the distance matrix", "7 (S30, S31, S32, S33, S34, ...) of 36",
             "29 (S01, S02")  # fmt: skip
    refused(bench.pretrain("--unifrac-matrix", bench.work / "m.tsv", tree=False), DATA, *words)


def test_sequences_that_do_not_meet_the_table(bench: Bench, refused: Refused) -> None:
    names = {asv: f"hash{k}" for k, asv in enumerate(bench.counts.index)}
    path = bench.table(bench.counts.rename(index=names))
    refused(bench.train("--table", path), DATA, "90 (hash0, hash1", "--sequences")
    records = [f">{name}\n{asv}\n" for asv, name in names.items()]
    fasta = bench.text("few.fasta", "".join(records[3:]))
    words = ("without a sequence", "3 (hash0, hash1, hash2) of 90")
    refused(bench.train("--table", path, "--sequences", fasta), DATA, *words)
    fasta = bench.text("all.fasta", "".join(records))
    assert bench.train("--table", path, "--sequences", fasta) == 0


# Duplicated ids


def test_duplicated_ids(bench: Bench, refused: Refused) -> None:
    counts, asvs = bench.counts, list(bench.counts.index)
    twice = counts.copy()
    twice.columns = ["S01", *counts.columns[:-1]]
    refused(bench.train("--table", bench.table(twice)), DATA, "Duplicated sample ids", "1 (S01)")
    twice = counts.copy()
    twice.index = [asvs[1], *asvs[1:]]
    words = ("Duplicated feature ids", f"1 ({short(asvs[1])})")
    refused(bench.train("--table", bench.table(twice)), DATA, *words)
    path = bench.metadata([*bench.rows, bench.rows[4]])
    status = bench.train("--metadata", path)
    refused(status, DATA, "Duplicated sample ids in the metadata", "S04", "keep one row of each")
    tree = bench.text("twice.nwk", bench.newick.replace(asvs[1] + ":", asvs[0] + ":"))
    words = ("in the tree more than once", f"1 ({short(asvs[0])})")
    refused(bench.pretrain("--tree", tree), DATA, *words)
    matrix = pd.DataFrame(0.0, index=counts.columns, columns=counts.columns)
    ids = ["S02", *counts.columns[1:]]
    matrix.set_axis(ids).set_axis(ids, axis=1).to_csv(bench.work / "m.tsv", sep="\t")
    given = ("--unifrac-matrix", bench.work / "m.tsv")
    refused(bench.pretrain(*given, tree=False), DATA, "twice in the distance matrix", "1 (S02)")


# Counts


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("-3", ("Negative counts",)),
        ("1.5", ("Fractional counts", "relative abundances")),
        ("NaN", ("Counts that are NaN or infinite",)),
        ("inf", ("Counts that are NaN or infinite",)),
        ("many", ("A count that is not a number",)),
    ],
)
@pytest.mark.parametrize("command", ["pretrain", "train"])
def test_counts_that_are_none(
    bench: Bench, refused: Refused, value: str, words: tuple[str, ...], command: str
) -> None:
    counts = bench.counts.astype(object)
    counts.iloc[0, 3] = value
    status = getattr(bench, command)("--table", bench.table(counts))
    where = "line 2" if value == "many" else "1 (S04)"
    refused(status, DATA, "table.tsv", where, *words)


def test_empty_samples(bench: Bench, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    counts = bench.counts.copy()
    counts.iloc[:, [1, 4]] = 0
    path = bench.table(counts)
    words = ("Samples without reads", "2 (S02, S05)", "--drop-empty-samples")
    refused(bench.train("--table", path), DATA, *words)
    assert bench.train("--table", path, "--drop-empty-samples") == 0
    message = f"Samples without reads in '{path}' are left out: 2 (S02, S05)."
    assert message in capsys.readouterr().err


def test_files_that_are_none(bench: Bench, refused: Refused) -> None:
    cut = bench.work / "cut.biom"
    cut.write_bytes((bench.good / "table.biom").read_bytes()[:5000])
    for path in (cut, bench.text("empty.tsv", ""), bench.text("prose.txt", "no table\n")):
        refused(bench.train("--table", path), DATA, str(path))
    tree = bench.text("cut.nwk", bench.newick[:200])
    refused(bench.pretrain("--tree", tree), DATA, "cannot be read as Newick", "cut.nwk")
    table = bench.good / "table.biom"
    refused(bench.pretrain("--tree", table), DATA, "tree is not text", "is HDF5")
    refused(bench.train("--metadata", table), DATA, "metadata is not text", "is HDF5")
    commas = bench.text("table.csv", bench.counts.to_csv())
    refused(bench.train("--table", commas), DATA, "comma-separated", "table.csv", "(.tsv)")


def test_a_misspelt_file_is_answered_with_the_nearest(bench: Bench, refused: Refused) -> None:
    status = bench.train("--table", bench.good / "Tabel.biom")
    refused(status, NO_INPUT, "Tabel.biom' does not exist", "did you mean 'table.biom'?")


def test_messages_list_few_sequences(bench: Bench, refused: Refused) -> None:
    tree = bench.text("other.nwk", "((a:1,b:1):1,c:1);")
    message = refused(bench.pretrain("--tree", tree), DATA, "features is in the tree")
    assert len(message.replace(str(tree), "")) < 250


# Trees


@pytest.mark.parametrize(
    ("pattern", "by", "words"),
    [
        (r":[0-9.e+-]+", "", ("no branch lengths", "none of 179 branches")),
        (r"(ASV):", r"\1:-", ("negative length", "1 (ASV)", "set negative lengths to zero")),
        (r"(ASV):[0-9.e+-]+", r"\1", ("without a length", "1 (ASV)")),
    ],
)
def test_trees_without_good_lengths(
    bench: Bench, refused: Refused, pattern: str, by: str, words: tuple[str, ...]
) -> None:
    asv = str(bench.counts.index[0])
    tree = bench.text("bad.nwk", re.sub(pattern.replace("ASV", asv), by, bench.newick))
    expected = (word.replace("ASV", short(asv)) for word in words)
    refused(bench.pretrain("--tree", tree), DATA, "bad.nwk", *expected)


# Targets


def test_target_that_is_absent_or_constant(bench: Bench, refused: Refused) -> None:
    words = ("no column 'phh'", "4: ph, site, subject, depth", "did you mean 'ph'?")
    refused(bench.train("--metadata-column", "phh"), DATA, *words)
    constant = bench.column(["5"] * 36)
    refused(bench.train(*constant), DATA, "'x' has one value only", "'5' in 36 samples")
    refused(bench.train(*bench.column(["sick"] * 36), "--classifier"), DATA,
            "'x' has one value only", "'sick' in 36 samples")  # fmt: skip
    one = ("--metadata-column", "site", "--classifier", "--where", "site=site-1")
    refused(bench.train(*one), DATA, "'site' has one value only", "'site-1'")


def test_target_that_is_not_numeric(bench: Bench, refused: Refused) -> None:
    values = ["acid", "acid", "basic", "NA", *(str(k) for k in range(32))]
    words = ("'x' is not numeric", "3 of 35 values", "2 (acid, basic)", "--classifier")
    refused(bench.train(*bench.column(values)), DATA, *words)


def test_missing_values_are_dropped_and_counted(
    bench: Bench, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ["NA", "Missing: Not provided", "Missing: Not provided", ""]
    assert bench.train(*bench.column([*missing, *(str(k) for k in range(32))])) == 0
    shown = capsys.readouterr().err
    assert "Samples left out: 4 of 36" in shown
    assert "2 with 'x' 'Missing: Not provided'" in shown
    assert "1 with 'x' 'NA'" in shown
    listed = (bench.out / "splits.tsv").read_text()
    assert not any(f"{name}\t" in listed for name in ("S01", "S02", "S03", "S04"))
    shutil.rmtree(bench.out)
    words = ("No sample has a value in the column 'x'", "36 of 36 (36 with 'x' 'NA')")
    refused(bench.train(*bench.column(["NA"] * 36)), DATA, *words)


def test_a_target_that_the_transform_or_the_split_cannot_take(
    bench: Bench, refused: Refused
) -> None:
    values = ["-4", *(str(k) for k in range(35))]
    words = ("log-zscore is not defined", "1 of -1 or less", "--target-transform zscore")
    refused(bench.train(*bench.column(values), "--target-transform", "log-zscore"), DATA, *words)
    header = "sample-id\tfold\tsplit\tgroup"
    rare = ["a"] * 18 + ["b"] * 17 + ["c"]
    sides = ["train"] * 30 + ["validation"] * 6
    lines = [f"{row[0]}\t1\t{side}\t" for row, side in zip(bench.rows[1:], sides, strict=True)]
    splits = bench.text("splits.tsv", "\n".join([header, *lines]) + "\n")
    given = (*bench.column(rare), "--classifier", "--splits", splits, "--rarefy-depth", 0)
    refused(bench.train(*given), DATA, "no training sample", "c")


def test_too_few_samples(bench: Bench, refused: Refused) -> None:
    words = ("Fewer training samples than a batch", "28 samples", "--batch-size 64")
    refused(bench.train("--batch-size", 64), DATA, *words)
    refused(bench.pretrain("--batch-size", 64), DATA, *words)
    words = ("rarefaction depth", "0 of 36 have 90000 reads", "lower --rarefy-depth")
    refused(bench.pretrain("--rarefy-depth", 90000), DATA, *words)
    refused(bench.train("--folds", 40), DATA, "Too few samples", "40 parts")


# Groups and splits


def test_groups_that_are_not_there(bench: Bench, refused: Refused) -> None:
    words = ("no column 'host'", "4: ph, site, subject, depth")
    refused(bench.train("--group-column", "host"), DATA, *words)
    refused(bench.pretrain("--group-column", "subject"), USAGE, "add --metadata")
    given = ("--metadata", bench.good / "metadata.tsv", "--group-column", "host")
    refused(bench.pretrain(*given), DATA, "no column 'host'")
    words = ("Too few groups", "3 for 5 parts")
    refused(bench.train("--group-column", "site", "--folds", 5), DATA, *words)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a\tb"], ("Not a splits file", "'sample-id\tfold\tsplit\tgroup'")),
        (["", "S01\t1\ttrian\t"], ("line 2", "has the split 'trian'")),
        (["", "S01\t1\ttrain\t", "S01\t1\tvalidation\t"], ("line 3", "repeats a sample")),
        (["", "Z01\t1\ttrain\t"], ("leaves no training sample",)),
        (["", "S01\t1\ttrain\t", "S02\t1\ttrain\t"], ("leaves no validation or test sample",)),
        ([], ("Not a splits file",)),
    ],
)
def test_splits_that_are_wrong(
    bench: Bench, refused: Refused, lines: list[str], words: tuple[str, ...]
) -> None:
    if lines and not lines[0]:
        lines = ["sample-id\tfold\tsplit\tgroup", *lines[1:]]
    path = bench.text("splits.tsv", "".join(f"{line}\n" for line in lines))
    refused(bench.train("--splits", path), DATA, *words, "splits.tsv")


def test_splits_that_tear_a_group_apart(bench: Bench, refused: Refused) -> None:
    header = "sample-id\tfold\tsplit\tgroup"
    ids = read(bench.good / "metadata.tsv")["sample-id"].iloc[1:]
    parts = ("train" if row % 4 else "validation" for row in range(len(ids)))
    lines = [f"{name}\t1\t{part}\t" for name, part in zip(ids, parts, strict=True)]
    path = bench.text("splits.tsv", "\n".join([header, *lines]) + "\n")
    words = ("divides groups between", "leave out --group-column")
    refused(bench.train("--splits", path, "--group-column", "subject"), DATA, *words)


# Files that are not there


@pytest.mark.parametrize(
    "words",
    [
        "train --table",
        "train --metadata",
        "train --sequences",
        "train --splits",
        "train --tree",
        "train --pretrained-encoder",
        "train --resume-from",
        "pretrain --tree",
        "pretrain --unifrac-matrix",
        "pretrain --metadata",
    ],
)
def test_missing_files(bench: Bench, refused: Refused, words: str) -> None:
    command, flag = words.split()
    tree = {"tree": False} if flag == "--unifrac-matrix" else {}
    absent = bench.work / "absent"
    refused(getattr(bench, command)(flag, absent, **tree), NO_INPUT, str(absent), "not exist")
    if flag not in ("--pretrained-encoder", "--resume-from"):
        folder = getattr(bench, command)(flag, bench.good, **tree)
        refused(folder, NO_INPUT, f"'{bench.good}' is a folder")


@pytest.mark.parametrize("flag", ["--model", "--table", "--sequences"])
def test_predict_without_its_files(
    bench: Bench, trained: Path, refused: Refused, flag: str
) -> None:
    given = ("--table", bench.good / "table.biom", "--model", trained, "--output", bench.out)
    refused(aam("predict", *given, flag, bench.work / "absent"), NO_INPUT, "absent", "not exist")


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Take the permission to read; root, who may read all, becomes nobody meanwhile."""
    is_root = os.geteuid() == 0
    mode = path.stat().st_mode
    path.chmod(0)
    if is_root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        path.chmod(mode)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into, as pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("hidden", ["file", "folder"])
def test_a_path_that_may_not_be_read(
    bench: Bench, open_folder: Path, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    folder, words = open_folder / "closed", ("--metadata", "absent", "--metadata-column", "ph")
    folder.mkdir()
    table = folder / "predictions.tsv"
    table.write_text("sample-id\tpredicted\n")
    # The first call, as root, imports what the second one needs.
    assert aam("evaluate", "--predictions", "absent", *words) == NO_INPUT
    capsys.readouterr()
    with unreadable(table if hidden == "file" else folder):
        status = aam("evaluate", "--predictions", table, *words)
    shown = capsys.readouterr().err
    assert status == NO_INPUT, shown
    sentence = rf"aam: The predictions file may not be read: '{table}'.*; check .*permissions.\n"
    assert re.fullmatch(sentence, shown)


def test_a_run_folder_that_may_not_be_written(
    bench: Bench, open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_folder / "closed"
    folder.mkdir()
    assert bench.train("--table", "absent") == NO_INPUT
    capsys.readouterr()
    with unreadable(folder):
        for place in (folder, folder / "run"):
            status = bench.train("--output-dir", place)
            shown = capsys.readouterr().err
            assert status == CANNOT_CREATE, shown
            assert str(folder) in shown
            assert "choose another --output-dir" in shown
    assert list(folder.iterdir()) == []


# Output that is in the way, or has no room


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_that_holds_a_run_is_refused(
    bench: Bench, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bench.work / "held"
    shutil.copytree(trained, folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "fold-1").mkdir()
    before = snapshot(folder)
    assert bench.train("--output-dir", folder) == CANNOT_CREATE
    shown = capsys.readouterr().err
    assert f"aam: The folder already holds a run: '{folder}' has run.json, checkpoints" in shown
    assert "--resume-from" in shown
    assert "--overwrite" in shown
    assert snapshot(folder) == before

    # Asked to replace it with bad input, the run is kept.
    spoilt = ("--metadata-column", "phh")
    assert bench.train("--output-dir", folder, "--overwrite", *spoilt) == DATA
    assert bench.train("--output-dir", folder, "--overwrite", "--attention-heads", 3) == USAGE
    assert snapshot(folder) == before

    assert bench.train("--output-dir", folder, "--overwrite", "--seed", 5) == 0
    after = snapshot(folder)
    assert after["notes.txt"] == b"mine"
    assert not (folder / "fold-1").exists()
    assert after["run.json"] != before["run.json"]
    assert len([name for name in after if "tfevents" in name]) == 1


def test_a_run_is_resumed_only_as_itself(
    bench: Bench, trained: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bench.work / "held"
    shutil.copytree(trained, folder)
    before = snapshot(folder)
    given = ("--output-dir", folder, "--resume-from", folder, "--epochs", 3)
    assert bench.train(*given, "--embedding-dim", 16) == USAGE
    assert "--embedding-dim 16 (was 8)" in capsys.readouterr().err
    assert bench.train(*given, "--lr", 0.5) == USAGE
    assert "--lr 0.5 (was 0.0003)" in capsys.readouterr().err
    assert bench.train(*given, "--metadata-column", "depth") == USAGE
    assert "--metadata-column depth (was ph)" in capsys.readouterr().err
    assert bench.train(*given, "--resume-from", pretrained) == DATA
    assert "is of `aam pretrain`" in capsys.readouterr().err
    assert bench.train(*given, "--folds", 3) == USAGE
    assert snapshot(folder) == before
    assert bench.train(*given) == 0
    rows = (folder / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2"]


def test_an_output_that_cannot_be_made(
    bench: Bench, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bench.text("file", "mine")
    for place in (file, file / "run"):
        assert bench.train("--output-dir", place) == CANNOT_CREATE
        assert f"'{file}' is no folder" in capsys.readouterr().err
    words = ("--table", bench.good / "table.biom", "--model", trained)
    assert aam("predict", *words, "--output", file) == CANNOT_CREATE
    assert f"aam: The output exists: '{file}'; add --overwrite" in capsys.readouterr().err
    assert aam("predict", *words, "--output", file / "p.tsv") == CANNOT_CREATE
    assert file.read_text() == "mine"


def whole(path: Path) -> None:
    """Check that a file of a run is complete."""
    if path.suffix == ".ckpt":
        assert torch.load(path, map_location="cpu", weights_only=True)["aam"]["format"] == FORMAT
    elif path.suffix in (".json", ".csv", ".tsv"):
        assert path.read_text().endswith("\n")
    else:
        assert path.name == ".lock" or path.parent.name == "tensorboard"


@pytest.mark.parametrize("kib", [64, 250])
def test_a_disk_that_fills_while_training(
    bench: Bench, small_disk: Callable[[int], Path], kib: int
) -> None:
    # A checkpoint of this network has about 230 KiB: the first, or the second, does not fit.
    disk = small_disk(kib)
    words = ("--tree", bench.good / "tree.nwk", "--table", bench.good / "table.biom",
             "--output-dir", disk / "run", "--checkpoint-every-n-steps", 1)  # fmt: skip
    command = [sys.executable, "-m", "aam.cli", "pretrain", *TINY, *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == CANNOT_CREATE, done.stderr
    *_, sentence = done.stderr.splitlines()
    assert sentence.startswith(f"aam: The disk is full: '{disk}', while writing '{disk}/run/")
    assert sentence.endswith("free some space or choose another folder.")
    assert "Traceback" not in done.stderr
    left = [path for path in disk.rglob("*") if path.is_file()]
    assert left
    for path in left:
        whole(path)


# HDF5 complains once more when it closes what it could not write.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_is_full_for_a_matrix(
    bench: Bench,
    trained: Path,
    small_disk: Callable[[int], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = small_disk(8)
    (disk / "filler").write_bytes(bytes(4096))
    given = ("--table", bench.good / "table.biom", "--tree", bench.good / "tree.nwk")
    for name in ("d.npy", "d.h5", "d.tsv"):
        assert aam("unifrac", *given, "--output", disk / name) == CANNOT_CREATE
        assert f"aam: The disk is full: '{disk}', while writing" in capsys.readouterr().err
        # The ids beside a .npy are whole and may stay.
        assert {path.name for path in disk.iterdir()} <= {"filler", "d.txt"}
        (disk / "d.txt").unlink(missing_ok=True)
    (disk / "filler").write_bytes(bytes(8192))
    words = ("--table", bench.good / "table.biom", "--model", trained)
    assert aam("predict", *words, "--output", disk / "p.tsv") == CANNOT_CREATE
    assert [path.name for path in disk.iterdir()] == ["filler"]


# Checkpoints of another kind


def test_checkpoints_of_another_kind(
    bench: Bench, trained: Path, pretrained: Path, refused: Refused
) -> None:
    best = trained / "checkpoints/best.ckpt"

    def predict(model: Path) -> int:
        given = ("--table", bench.good / "table.biom", "--output", bench.out)
        return aam("predict", *given, "--model", model)

    refused(predict(pretrained), DATA, "has no target", "use `aam train` first")
    refused(predict(bench.good), NO_INPUT, "No checkpoint: the folder", str(bench.good))
    quick = bench.work / "quick"
    (quick / "checkpoints").mkdir(parents=True)
    (quick / "checkpoints/ensemble.ckpt").touch()
    encoder = bench.train("--pretrained-encoder", quick)
    refused(encoder, NO_INPUT, "no checkpoints/best.ckpt, but ensemble.ckpt", "`aam pretrain`")
    cut = bench.work / "cut.ckpt"
    cut.write_bytes(best.read_bytes()[: best.stat().st_size // 2])
    refused(predict(cut), DATA, "cannot be read", "cut.ckpt")
    torch.save({"weight": torch.zeros(2)}, bench.work / "other.pt")
    refused(predict(bench.work / "other.pt"), DATA, "Not a checkpoint of this program", "other.pt")
    torch.save(torch.nn.Linear(2, 2), bench.work / "module.pt")
    refused(predict(bench.work / "module.pt"), DATA, "cannot be read", "module.pt")
    refused(predict(bench.text("empty.ckpt", "")), DATA, "cannot be read", "empty.ckpt")
    refused(predict(bench.good / "metadata.tsv"), DATA, "cannot be read", "metadata.tsv")
    content = torch.load(best, weights_only=True)
    content["aam"]["format"], content["aam"]["version"] = FORMAT + 1, "99.1"
    torch.save(content, bench.work / "newer.ckpt")
    words = ("written by a newer version", "aam 99.1", f"format {FORMAT + 1}")
    refused(predict(bench.work / "newer.ckpt"), DATA, *words)
    strange = torch.load(best, weights_only=True)
    name = next(name for name in strange["state_dict"] if name.endswith("weight"))
    strange["state_dict"]["network.stranger"] = strange["state_dict"].pop(name)
    torch.save(strange, bench.work / "strange.ckpt")
    words_of_it = ("The checkpoint has invalid content", "1 more are of another network")
    refused(predict(bench.work / "strange.ckpt"), DATA, *words_of_it)
    for flag in ("--pretrained-encoder", "--resume-from"):
        refused(bench.train(flag, bench.work / "newer.ckpt"), DATA, *words)
        refused(bench.train(flag, cut), DATA, "cannot be read", "cut.ckpt")


# Options that contradict each other, and devices that are not there


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("pretrain", "--unifrac-matrix MATRIX", "Both a tree and a matrix"),
        ("pretrain", "--penalty 0 --nuc-penalty 0", "Nothing to learn"),
        ("pretrain", "--embedding-dim 9", "--embedding-dim 9 --attention-heads 2"),
        ("train", "--freeze-base", "--freeze-base without --pretrained-encoder"),
        ("train", "--best-metric accuracy", "--best-metric accuracy"),
        ("train", "--metadata-column site --classifier --best-metric r2", "--best-metric r2"),
        ("train", "--stratify", "--stratify needs classes"),
        ("train", "--attention-heads 3", "--embedding-dim 8 --attention-heads 3"),
        ("train", "--test-size 1", "--test-size 1.0"),
        ("train", "--where site", "COLUMN=VALUE"),
        ("train", "--folds 0", "--folds 0"),
        ("train", "--unifrac-matrix MATRIX --unifrac-metric faith_pd", "Faith PD is no distance"),
        ("train", "--quantiles 0 0.5", "--quantiles 0.0 0.5; give more than 0 and less than 1"),
        ("train", "--batch-size 0", "--batch-size 0; give 1 or more"),
        ("train", "--epochs 0 --lr 0", "--epochs 0, --lr 0.0; give 1 or more for --epochs, more"),
        ("train", "--lr inf", "--lr inf"),
        ("train", "--dropout 1", "--dropout 1.0; give 0 to below 1"),
        ("train", "--nuc-mask-ratio 1", "--nuc-mask-ratio 1.0"),
        ("train", "--penalty nan", "--penalty nan"),
        ("train", "--unifrac-alpha 7", "--unifrac-alpha 7.0; give 0 to 1"),
        ("train", "--gradient-accumulation-steps 0", "--gradient-accumulation-steps 0"),
        ("train", "--rarefy-depth -5", "--rarefy-depth -5; give 0 or more"),
        ("train", "--max-bp 0", "--max-bp 0"),
        ("train", "--num-workers -1", "--num-workers -1"),
        ("train", "--seed -1", "--seed -1"),
        ("train", "--token-limit 0", "--token-limit 0"),
    ],
)
def test_options_that_contradict(
    bench: Bench, refused: Refused, command: str, words: str, said: str
) -> None:
    matrix = bench.text("m.tsv", "")
    given = [str(matrix) if word == "MATRIX" else word for word in words.split()]
    refused(getattr(bench, command)(*given), USAGE, said)


def test_conditions_that_nobody_meets(bench: Bench, refused: Refused) -> None:
    words = ("No sample meets the condition", "site-1, site-2, site-3")
    refused(bench.train("--where", "site=mars"), DATA, *words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["pretrain", "train"])
def test_a_gpu_that_is_not_there(bench: Bench, refused: Refused, command: str) -> None:
    words = ("No GPU", "--device cuda", "--device auto or cpu")
    refused(getattr(bench, command)("--device", "cuda"), UNAVAILABLE, *words)
