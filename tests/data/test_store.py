"""Stores: same results as from files, mapped memory that processes share."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.prepare import pack
from aam.data.study import load_study
from aam.data.table import PackedStrings, take_strings
from tests.support.commands import aam, pretrain, read, train
from tests.support.stores import CANNOT_CREATE, make, refused, same_study, unifrac


def test_pretraining_on_a_store_gives_the_same_result(
    study_dir: Path, store: Path, tmp_path: Path
) -> None:
    assert pretrain(study_dir, tmp_path / "a", "--tree", study_dir / "tree.nwk") == 0
    assert pretrain(study_dir, tmp_path / "b", "--table", store) == 0
    same_metrics(tmp_path / "a", tmp_path / "b")
    same_files(tmp_path / "a", tmp_path / "b", "embeddings.tsv", "splits.tsv")
    recorded = json.loads((tmp_path / "b" / "run.json").read_text())["inputs"]["--table"]
    assert recorded["path"] == str(store)


@pytest.mark.medium
@pytest.mark.parametrize(
    "args",
    [
        "--penalty 0 --max-bp 31 --num-workers 2",
        pytest.param("--group-column subject --folds 2", marks=pytest.mark.nightly),
    ],
)
def test_train_predict_and_embed_on_a_store_give_the_same_result(
    study_dir: Path, store: Path, tmp_path: Path, args: str
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    tree = ("--tree", study_dir / "tree.nwk")
    assert train(study_dir, a, *tree, *args.split()) == 0
    assert train(study_dir, b, "--table", store, "--metadata", store, *args.split()) == 0
    if "--folds" not in args:
        same_metrics(a, b)
    same_files(a, b, "embeddings.tsv", "predictions.tsv", "splits.tsv")
    for folder, table in ((a, study_dir / "table.biom"), (b, store)):
        given = ("--model", a, "--table", table, "--device", "cpu")
        assert aam("predict", *given, "--output", folder / "p.tsv") == 0
        assert aam("embed", *given, "--output-dir", folder / "e") == 0
    same_files(a, b, "p.tsv", "e/embeddings.tsv", "e/ordination.txt")
    assert aam("report", "--run-dir", b) == 0
    assert "no colours" not in (b / "report.html").read_text()


def test_cut_sequences_that_are_equal_are_one_asv(study_dir: Path, store: Path) -> None:
    tree = PhylogenyOptions(tree=study_dir / "tree.nwk")
    tables = (study_dir / "table.biom", tree), (store, PhylogenyOptions())
    read, mapped = (load_study(TableOptions(table=path), given, 12) for path, given in tables)
    same_study(mapped, read)
    whole = load_study(TableOptions(table=store), PhylogenyOptions())
    assert len(read.tokens_FL) == len(np.unique(whole.tokens_FL[:, :12], axis=0))
    assert len(read.tokens_FL) < len(whole.tokens_FL)
    assert np.array_equal(read.reads, whole.reads)
    ids = list(whole.table.feature_ids)
    for one in (read, mapped, pickle.loads(pickle.dumps(mapped))):
        columns = [ids.index(name) for name in one.table.feature_ids]
        assert np.array_equal(one.tokens_FL, whole.tokens_FL[columns, :12])
        assert one.phylogeny is not None and whole.phylogeny is not None
        above = [
            np.split(tree.indices, tree.indptr[1:-1]) for tree in (one.phylogeny, whole.phylogeny)
        ]
        assert all(map(np.array_equal, above[0], (above[1][column] for column in columns)))
        kept = one.take_samples(np.array([3, 1]))
        assert (kept.counts(np.array([1])) != read.counts(np.array([1]))).nnz == 0


def test_a_matrix_replaces_the_tree_of_the_store(
    study_dir: Path, store: Path, tmp_path: Path
) -> None:
    table = ("--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk")
    assert aam("unifrac", *table, "--output", tmp_path / "m.tsv") == 0
    matrix = ("--unifrac-matrix", tmp_path / "m.tsv")
    assert pretrain(study_dir, tmp_path / "a", *matrix) == 0
    assert pretrain(study_dir, tmp_path / "b", *matrix, "--table", store) == 0
    same_metrics(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("metric", ["generalized", "faith_pd"])
def test_unifrac_of_a_store_is_the_same(
    study_dir: Path, store: Path, tmp_path: Path, metric: str
) -> None:
    tree = ("--tree", study_dir / "tree.nwk")
    for name, table in (
        ("a", ("--table", study_dir / "table.biom", *tree)),
        ("b", ("--table", store)),
    ):
        args = ("--unifrac-metric", metric, "--output", tmp_path / f"{name}.tsv")
        assert aam("unifrac", *table, *args) == 0
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "b.tsv").read_bytes()


@pytest.mark.slow
def test_every_command_takes_a_store(
    study_dir: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    column = ("--metadata-column", "ph")
    pages = []
    for name, table, metadata in (
        ("a", study_dir / "table.biom", study_dir / "metadata.tsv"),
        ("b", store, store),
    ):
        run, given, out = tmp_path / name, ("--table", table), tmp_path / f"of-{name}"
        labels = (*given, "--metadata", metadata, *column)
        model = (*given, "--model", run)
        out.mkdir()
        folds = ("--folds", 2, "--output-dir", run)
        assert aam("train", *labels, *folds) == 0
        pages.append((run / "report.html").read_text())
        scored = ("--predictions", run / "predictions.tsv", "--metadata", metadata, *column)
        assert aam("evaluate", *scored, "--output", out / "evaluated.json") == 0
        explain = ("--explain", out / "explained.tsv")
        assert aam("predict", *model, "--output", out / "p.tsv", *explain) == 0
        clades = ("--taxonomy", study_dir / "taxonomy.tsv", "--clades", out / "clades.tsv")
        assert aam("importance", *model, "--output", out / "i.tsv", *clades) == 0
        assert aam("inspect", *labels, "--report", out / "inspected.html") == 0
        assert aam("report", "--run-dir", run, "--output", out / "again.html") == 0
        pages.append((out / "again.html").read_text())
        vary = ("--vary", "members=kernel,forest", "--trials", 1, "--inner-folds", 2)
        assert aam("search", *labels, "--folds", 2, *vary, "--output-dir", out / "search") == 0
    assert aam("compare", tmp_path / "a", tmp_path / "b") == 0
    shown = capsys.readouterr()
    assert "No report" not in shown.err
    for page in pages:
        assert "Heat map of " in page
    same_files(
        tmp_path / "a", tmp_path / "b", "predictions.tsv", "importance.tsv", "explanations.tsv"
    )
    tables = ("evaluated.json", "p.tsv", "explained.tsv", "i.tsv", "clades.tsv", "search/best.yaml")
    same_files(tmp_path / "of-a", tmp_path / "of-b", *tables)


def same_files(a: Path, b: Path, *names: str) -> None:
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def same_metrics(a: Path, b: Path) -> None:
    one, two = (read(folder / "metrics.csv").drop(columns="seconds") for folder in (a, b))
    assert one.equals(two)


def test_processes_share_the_pages_of_a_store(store: Path) -> None:
    code = """
import sys
from pathlib import Path
from aam.contract.options.groups import TableOptions
from aam.data.study import load_study
study = load_study(TableOptions(table=Path(sys.argv[1])))
study.table.counts.data.sum(), study.table.counts.indices.sum(), study.tokens_FL.sum()
print("open", flush=True)
sys.stdin.readline()
name, sizes = "", {}
for line in open("/proc/self/smaps"):
    fields = line.split()
    if "-" in fields[0] and not fields[0].endswith(":"):
        name = fields[-1]
    elif name.endswith(("counts.npy", "counts_asvs.npy", "tokens.npy")):
        sizes[fields[0]] = sizes.get(fields[0], 0) + int(fields[1]) if fields[1].isdigit() else 0
print(sizes["Rss:"], sizes["Private_Clean:"] + sizes["Private_Dirty:"], flush=True)
sys.stdin.readline()
"""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(store)]
    both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    sizes = []
    for process in both:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        sizes.append([int(word) for word in process.stdout.readline().split()])
    for process in both:
        process.communicate("\n")
    for resident, private in sizes:
        assert resident > 0
        assert private == 0


def test_a_selection_of_samples_copies_no_counts(store: Path) -> None:
    study = load_study(TableOptions(table=store), PhylogenyOptions())
    rows = np.array([7, 3, 30])
    part = study.take_samples(rows)
    assert np.shares_memory(part.table.counts.data, study.table.counts.data)
    assert tuple(part.table.sample_ids) == tuple(study.table.sample_ids[row] for row in rows)
    twice = part.take_samples(np.array([2, 0]))
    expected = study.table.counts[np.array([30, 7])].toarray()
    assert np.array_equal(twice.table.counts[np.arange(2)].toarray(), expected)
    assert np.array_equal(twice.reads, expected.sum(axis=1))


def test_a_pickled_study_holds_the_path_of_its_store(store: Path) -> None:
    options = PhylogenyOptions()
    study = load_study(TableOptions(table=store), options, 31).take_samples(np.arange(9, 2, -1))
    sent = pickle.dumps(study)
    assert len(sent) < 2000
    arrived = pickle.loads(sent)
    same_study(arrived, study)
    assert arrived.phylogeny is not None


@given(st.lists(st.text(), max_size=20), st.data())
def test_packed_strings_are_a_sequence(strings: list[str], data: st.DataObject) -> None:
    packed = PackedStrings(*pack(strings))
    assert list(packed) == strings
    assert packed[:] == tuple(strings)
    assert [packed[i] for i in range(-len(strings), len(strings))] == strings * 2
    places = st.lists(st.integers(0, max(len(strings) - 1, 0)), max_size=len(strings) and 9)
    rows = np.array(data.draw(places), dtype=np.int64)
    assert list(packed.take(rows)) == list(take_strings(tuple(strings), rows))
    assert list(packed.take(rows).take(np.arange(len(rows))[::-1])) == list(packed.take(rows))[::-1]


def test_a_store_on_a_read_only_disk_is_read(
    study_dir: Path,
    store: Path,
    small_disk: Callable[[int], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = small_disk(1024)
    shutil.copytree(store, disk / "study.aam")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert unifrac(disk / "study.aam", tmp_path) == 0
    capsys.readouterr()
    status = make(study_dir, disk / "other.aam")
    refused(capsys, status, CANNOT_CREATE, "cannot be written to", str(disk))
