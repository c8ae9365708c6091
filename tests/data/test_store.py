"""Stores: same results as from files, bounded memory, refusal of damaged or partial folders."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aam.contract.errors import CannotCreate
from aam.contract.folders import atomic_folder
from aam.contract.options.commands.studies import Prepare
from aam.contract.options.study import PhylogenyOptions, TableOptions
from aam.data.metadata import read_metadata
from aam.data.store.mapped import PackedStrings, pack, take_strings
from aam.data.store.reader import open_store
from aam.data.store.writer import prepare
from aam.data.study import Study, load_study
from aam.data.table import read_table
from tests.data.test_table import whole, write_all, write_hdf5
from tests.support.artifacts import write_artifact
from tests.support.commands import aam, pretrain, read, train

ROOT = Path(__file__).parents[2]
USAGE, DATA, NO_INPUT, CANNOT_CREATE = 64, 65, 66, 73


@pytest.fixture(scope="module")
def store(study_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated study, prepared."""
    folder = tmp_path_factory.mktemp("stores") / "study.aam"
    given = ("--tree", study_dir / "tree.nwk", "--metadata", study_dir / "metadata.tsv")
    assert make(study_dir, folder, *given) == 0
    return folder


@pytest.fixture
def copy(store: Path, tmp_path: Path) -> Path:
    """A copy of the store, to be damaged."""
    return Path(shutil.copytree(store, tmp_path / "copy.aam"))


def make(study_dir: Path, folder: Path, *words: object) -> int:
    return aam("prepare", "--table", study_dir / "table.biom", "--output", folder, *words)


# The same numbers


def test_pretraining_on_a_store_gives_the_same_result(
    study_dir: Path, store: Path, tmp_path: Path
) -> None:
    assert pretrain(study_dir, tmp_path / "a", "--tree", study_dir / "tree.nwk") == 0
    assert pretrain(study_dir, tmp_path / "b", "--table", store) == 0
    same_metrics(tmp_path / "a", tmp_path / "b")
    same_files(tmp_path / "a", tmp_path / "b", "embeddings.tsv", "splits.tsv")
    recorded = json.loads((tmp_path / "b" / "run.json").read_text())["inputs"]["--table"]
    assert recorded["path"] == str(store)


@pytest.mark.parametrize(
    "words",
    ["", "--penalty 0 --max-bp 31 --num-workers 2", "--group-column subject --folds 2"],
)
def test_train_predict_and_embed_on_a_store_give_the_same_result(
    study_dir: Path, store: Path, tmp_path: Path, words: str
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    tree = ("--tree", study_dir / "tree.nwk")
    assert train(study_dir, a, *tree, *words.split()) == 0
    assert train(study_dir, b, "--table", store, "--metadata", store, *words.split()) == 0
    if "--folds" not in words:
        same_metrics(a, b)
    same_files(a, b, "embeddings.tsv", "predictions.tsv", "splits.tsv")
    for folder, table in ((a, study_dir / "table.biom"), (b, store)):
        given = ("--model", a, "--table", table, "--device", "cpu")
        assert aam("predict", *given, "--output", folder / "p.tsv") == 0
        assert aam("embed", *given, "--output-dir", folder / "e") == 0
    same_files(a, b, "p.tsv", "e/embeddings.tsv", "e/ordination.txt")
    assert aam("report", "--run-dir", b) == 0
    assert "no colours" not in (b / "report.html").read_text()


def test_a_matrix_replaces_the_tree_of_the_store(
    study_dir: Path, store: Path, tmp_path: Path
) -> None:
    table = ("--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk")
    assert aam("unifrac", *table, "--output", tmp_path / "m.tsv") == 0
    matrix = ("--unifrac-matrix", tmp_path / "m.tsv")
    assert pretrain(study_dir, tmp_path / "a", *matrix) == 0
    assert pretrain(study_dir, tmp_path / "b", *matrix, "--table", store) == 0
    same_metrics(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("metric", ["unweighted", "weighted", "generalized", "faith_pd"])
def test_unifrac_of_a_store_is_the_same(
    study_dir: Path, store: Path, tmp_path: Path, metric: str
) -> None:
    tree = ("--tree", study_dir / "tree.nwk")
    for name, table in (
        ("a", ("--table", study_dir / "table.biom", *tree)),
        ("b", ("--table", store)),
    ):
        words = ("--unifrac-metric", metric, "--output", tmp_path / f"{name}.tsv")
        assert aam("unifrac", *table, *words) == 0
    assert (tmp_path / "a.tsv").read_bytes() == (tmp_path / "b.tsv").read_bytes()


@pytest.mark.parametrize("words", ["--metadata-column ph", "--metadata-column site --classifier"])
def test_baseline_and_evaluate_on_a_store_give_the_same_result(
    study_dir: Path, store: Path, tmp_path: Path, words: str
) -> None:
    options = (*words.split(), "--folds", 2, "--n-estimators", 5, "--n-jobs", 1)
    for name, table, metadata in (
        ("a", study_dir / "table.biom", study_dir / "metadata.tsv"),
        ("b", store, store),
    ):
        given = ("--table", table, "--metadata", metadata, "--output-dir", tmp_path / name)
        assert aam("baseline", *given, *options) == 0
        predictions = ("--predictions", tmp_path / "a" / "predictions.tsv", "--metadata", metadata)
        output = ("--output", tmp_path / name / "scores.json")
        assert aam("evaluate", *predictions, *words.split(), *output) == 0
    same_files(tmp_path / "a", tmp_path / "b", "predictions.tsv", "splits.tsv", "scores.json")


def same_files(a: Path, b: Path, *names: str) -> None:
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def same_metrics(a: Path, b: Path) -> None:
    one, two = (read(folder / "metrics.csv").drop(columns="seconds") for folder in (a, b))
    assert one.equals(two)


# Streams


@settings(max_examples=8, deadline=None)
@given(whole, st.integers(1, 200))
def test_every_format_is_prepared_to_the_same_study(
    counts: NDArray[np.int64], block_bytes: int
) -> None:
    counts[:, 0] += counts.sum(axis=1) == 0
    samples = tuple(f"10317.{row:04d}0" for row in range(len(counts)))
    with TemporaryDirectory() as name:
        for form, path in write_all(Path(name), counts, samples).items():
            expected = load_study(TableOptions(table=path))
            folder = Path(name) / f"{form}.aam"
            folder.mkdir()
            prepare(Prepare(table=(path,)), folder, block_bytes)
            found = load_study(TableOptions(table=folder))
            same_study(found, expected)
            again, first = open_store(folder).as_read(), read_table(path)
            assert again.feature_ids == first.feature_ids, form
            assert np.array_equal(again.counts.toarray(), first.counts.toarray()), form


def same_study(found: Study, expected: Study) -> None:
    assert tuple(found.table.sample_ids) == tuple(expected.table.sample_ids)
    assert tuple(found.table.feature_ids) == tuple(expected.table.feature_ids)
    rows = np.arange(len(expected.reads))
    one, two = found.table.counts[rows], expected.table.counts[rows]
    for part in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(one, part), getattr(two, part))
    assert one.dtype == two.dtype
    assert np.array_equal(found.reads, expected.reads)
    assert np.array_equal(found.table.richness, expected.table.richness)
    assert np.array_equal(found.tokens_FL, expected.tokens_FL)


@pytest.mark.parametrize(
    ("value", "words"),
    [("-3", "Negative counts"), ("1.5", "Fractional counts"), ("NaN", "NaN"), ("9e9", "beyond")],
)
def test_prepare_refuses_invalid_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, words: str
) -> None:
    table = tmp_path / "table.tsv"
    table.write_text(f"#OTU ID\ts1\ts2\nACGT\t1\t2\nACCT\t4\t{value}\n")
    assert aam("prepare", "--table", table, "--output", tmp_path / "s.aam") == DATA
    shown = capsys.readouterr().err
    assert words in shown
    assert "1 (s2)" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["table.tsv"]


def test_prepare_prints_what_is_left_out(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, tree = tmp_path / "table.tsv", tmp_path / "tree.nwk"
    table.write_text(
        "#OTU ID\ts1\ts2\ts3\nACGT\t1\t0\t0\nACCT\t4\t0\t5\nTTTT\t0\t0\t2\nGG\t0\t0\t0\n"
    )
    tree.write_text("((ACGT:1,AAAA:2):1,GG:1);")
    words = ("prepare", "--table", table, "--tree", tree, "--output", tmp_path / "s.aam")
    assert aam(*words) == DATA
    assert "Samples without reads" in capsys.readouterr().err
    assert aam(*words, "--drop-empty-samples") == DATA
    assert "Features of the table are not in the tree: 2 (ACCT, TTTT)" in capsys.readouterr().err
    assert aam(*words, "--drop-empty-samples", "--drop-missing-asvs") == 0
    shown = capsys.readouterr().err
    for word in (
        "without reads are left out: 1 of 4",
        "left out: 1 (s2)",
        "2 (ACCT, TTTT) of 3",
        "without an ASV of the tree are left out: 1 (s3)",
        "1 samples x 1 ASVs",
    ):
        assert word in shown
    input = TableOptions(table=table, drop_empty_samples=True)
    expected = load_study(input, PhylogenyOptions(tree=tree, drop_missing_asvs=True))
    found = load_study(TableOptions(table=tmp_path / "s.aam"), PhylogenyOptions())
    same_study(found, expected)
    assert found.phylogeny is not None
    assert expected.phylogeny is not None
    for name in ("lengths_K", "indptr", "indices"):
        one, two = getattr(found.phylogeny, name), getattr(expected.phylogeny, name)
        assert np.array_equal(one, two)
        assert one.dtype == two.dtype


def test_prepare_refuses_files_that_are_not_tables(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = (study_dir / "table.biom").read_bytes()
    packed = gzip.compress(table)
    artifact = write_artifact(tmp_path / "whole.qza", "FeatureTable[Frequency]",
                              {"feature-table.biom": table}).read_bytes()  # fmt: skip
    for name, content, words in (
        ("cut.biom", table[:5000], "Invalid or incomplete BIOM 2.1 (HDF5) table"),
        ("cut.gz", packed[: len(packed) // 2], "The gzip file is damaged"),
        ("cut.qza", artifact[: len(artifact) // 2], "The QIIME 2 artifact is damaged"),
        ("empty.tsv", b"", "the file is empty"),
        ("prose.txt", b"no table\n", "line 1 is 'no table'"),
        ("latin.tsv", b"#OTU ID\ts1\nACGT\t1\n\xff\t1\n", "neither HDF5 nor UTF-8 text"),
        ("json", b'{"rows": []}', "Invalid or incomplete BIOM 1 (JSON) table"),
    ):
        (tmp_path / name).write_bytes(content)
        status = aam("prepare", "--table", tmp_path / name, "--output", tmp_path / "s.aam")
        refused(capsys, status, DATA, words, name)
        assert not [path for path in tmp_path.iterdir() if "s.aam" in path.name]


# Memory


def test_processes_share_the_pages_of_a_store(store: Path) -> None:
    code = """
import sys
from pathlib import Path
from aam.contract.options.study import TableOptions
from aam.data.study import load_study
study = load_study(TableOptions(table=Path(sys.argv[1])))
study.table.counts.data.sum(), study.table.counts.indices.sum(), study.tokens_FL.sum()
print("open", flush=True)
sys.stdin.readline()
name, sizes = "", {}
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0] and not words[0].endswith(":"):
        name = words[-1]
    elif name.endswith(("counts.npy", "counts_asvs.npy", "tokens.npy")):
        sizes[words[0]] = sizes.get(words[0], 0) + int(words[1]) if words[1].isdigit() else 0
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


def test_preparing_holds_less_than_two_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, size=(1200, 300)) * (rng.random((1200, 300)) < 0.5)
    path = write_hdf5(tmp_path / "t.biom", counts, tuple(f"s{row}" for row in range(1200)))

    def peak(block_bytes: int) -> int:
        folder = tmp_path / str(block_bytes)
        folder.mkdir()
        tracemalloc.start()
        prepare(Prepare(table=(path,)), folder, block_bytes)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    block = 1 << 20
    peak(1 << 14)  # What is imported on the way counts once.
    # What is as long as the samples or the ASVs is in both.
    assert block / 2 < peak(block) - peak(1 << 13) < 2 * block


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


# Bad input


def refused(capsys: pytest.CaptureFixture[str], status: int, expected: int, *words: str) -> None:
    shown = capsys.readouterr().err
    assert status == expected, shown
    sentence = shown.splitlines()[-1]
    assert sentence.startswith("aam: ")
    for word in words:
        assert word in sentence


def unifrac(table: Path, folder: Path) -> int:
    return aam("unifrac", "--table", table, "--output", folder / "m.tsv", "--overwrite")


@pytest.mark.parametrize(
    "name", ["counts", "counts_asvs", "samples", "tokens", "ancestors", "metadata_cells"]
)
def test_a_changed_store_is_refused(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert unifrac(copy, tmp_path) == 0
    file = copy / f"{name}.npy"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    before = file.stat()
    file.write_bytes(content)
    # Even if the time of modification was set back.
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    words = ("The store is damaged", f"'{file}' has another checksum", "aam prepare")
    refused(capsys, unifrac(copy, tmp_path), DATA, *words)
    refused(capsys, aam("prepare", "--table", copy, "--verify"), DATA, *words)
    file.write_bytes(content[:-4])
    words = (f"'{file}' has {len(content) - 4} bytes of {len(content)}",)
    refused(capsys, unifrac(copy, tmp_path), DATA, *words)
    file.unlink()
    refused(capsys, unifrac(copy, tmp_path), DATA, f"'{file}' is absent")


def test_a_changed_header_is_refused(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copy / "store.json"
    text = file.read_text()
    file.write_text(text.replace('"format": 1', '"format": 2').replace("0.1.0", "99.1"))
    words = ("of another version", "has format 2, made by aam 99.1", "reads format 1")
    refused(capsys, unifrac(copy, tmp_path), DATA, *words)
    refused(capsys, aam("prepare", "--table", copy, "--verify"), DATA, *words)
    refused(capsys, pretrain(tmp_path, tmp_path / "run", "--table", copy), DATA, *words)
    file.write_text(text.replace('"samples": 36', '"samples": 35'))
    refused(capsys, unifrac(copy, tmp_path), DATA, f"'{file}' was changed")
    file.write_text(text[: len(text) // 2])
    refused(capsys, unifrac(copy, tmp_path), DATA, "not what aam writes")
    file.unlink()
    refused(
        capsys,
        unifrac(copy, tmp_path),
        DATA,
        "The store is incomplete",
        "has no store.json",
        "aam prepare",
    )
    assert not (tmp_path / "run").exists()


def test_options_that_contradict_a_store_are_refused(
    study_dir: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = ("--tree", study_dir / "tree.nwk")
    status = pretrain(study_dir, tmp_path / "run", "--table", store, *tree)
    refused(capsys, status, USAGE, "own tree and sequences", "--tree", "leave them out")
    fasta = ("--sequences", study_dir / "absent.fasta")
    status = aam("predict", "--table", store, *fasta, "--model", store, "--output", tmp_path / "p")
    assert status != 0
    status = aam("baseline", "--table", store, *fasta, "--metadata", store, "--metadata-column",
                 "ph", "--output-dir", tmp_path / "b")  # fmt: skip
    refused(capsys, status, USAGE, "own tree and sequences", "--sequences")

    bare = tmp_path / "bare.aam"
    assert make(study_dir, bare) == 0
    refused(capsys, unifrac(bare, tmp_path), USAGE, "The store has no tree", str(bare))
    status = pretrain(study_dir, tmp_path / "run", "--table", bare)
    refused(capsys, status, USAGE, "UniFrac needs a phylogeny", "the store has no tree")
    status = train(study_dir, tmp_path / "run", "--table", bare, "--metadata", bare)
    refused(capsys, status, DATA, "The store holds no metadata", str(bare))
    assert not (tmp_path / "run").exists()
    table = study_dir / "table.biom"
    status = aam("unifrac", "--table", table, "--output", tmp_path / "m.tsv")
    refused(capsys, status, USAGE, "UniFrac needs a tree")


def test_prepare_refuses_invalid_input(
    study_dir: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ("--table", study_dir / "table.biom")
    refused(capsys, aam("prepare", *table), USAGE, "--output was not given")
    again = ("--table", store, "--output", tmp_path / "again.aam")
    refused(capsys, aam("prepare", *again), USAGE, "a store already")
    status = aam("prepare", *table, "--verify")
    refused(capsys, status, DATA, "The store is incomplete", "table.biom")
    refused(capsys, make(study_dir, store), CANNOT_CREATE, "The output exists", "--overwrite")
    other = tmp_path / "other.tsv"
    other.write_text("sample-id\tx\nnobody\t1\n")
    status = make(study_dir, tmp_path / "s.aam", "--metadata", other)
    refused(capsys, status, DATA, "no sample in common", "36 (S01")
    status = make(study_dir, tmp_path / "s.aam", "--tree", tmp_path / "absent.nwk")
    refused(capsys, status, NO_INPUT, "absent.nwk")
    assert [path.name for path in tmp_path.iterdir()] == ["other.tsv"]


def test_overwrite_replaces_a_store(study_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study.aam"
    assert make(study_dir, folder) == 0
    before = load_study(TableOptions(table=folder))
    assert make(study_dir, folder, "--overwrite", "--tree", study_dir / "tree.nwk") == 0
    assert (folder / "ancestors.npy").exists()
    # Who has the old one open still reads it.
    assert before.table.counts.data.sum() == before.reads.sum()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.aam", "study.aam.run.json"]


def test_metadata_of_a_store_is_that_of_the_file(study_dir: Path, store: Path) -> None:
    one, two = read_metadata(study_dir / "metadata.tsv"), read_metadata(store)
    ids = load_study(TableOptions(table=store)).table.sample_ids
    assert list(one.columns) == list(two.columns)
    for column in one.columns:
        assert np.array_equal(one.values(column, ids), two.values(column, ids))


def test_a_killed_prepare_leaves_no_complete_store(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A table that takes seconds, so that the process can be stopped in the middle.
    table, folder = tmp_path / "table.tsv", tmp_path / "study.aam"
    samples = "\t".join(f"s{number}" for number in range(400))
    rows = ("\t".join([f"{'ACGT' * 3}{name:b}", *["7"] * 400]) for name in range(4000))
    dna = str.maketrans("01", "AC")
    table.write_text("\n".join([f"#OTU ID\t{samples}", *(row.translate(dna) for row in rows)]))
    command = [sys.executable, "-m", "aam.cli", "prepare", "--table", table, "--output", folder]
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT)
    for _ in range(60_000):
        left = [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]
        if left and (left[0] / "counts.npy").exists():
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    # Another one leaves it alone while it lives.
    assert make(study_dir, folder) == 0
    assert "a process still writes it" in capsys.readouterr().err
    assert left[0].exists()
    shutil.rmtree(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not folder.exists()
    refused(
        capsys, unifrac(left[0], tmp_path), DATA, "The store is incomplete", "has no store.json"
    )
    assert make(study_dir, folder) == 0
    assert f"Removed '{left[0]}'" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} - {"m.tsv.run.json"} == {
        "table.tsv", "study.aam", "study.aam.run.json"
    }  # fmt: skip
    assert aam("prepare", "--table", folder, "--verify") == 0


def test_of_two_writers_the_first_to_finish_makes_the_store(
    study_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study.aam"
    words = ("--table", study_dir / "table.biom", "--output", folder)
    command = [sys.executable, "-m", "aam.cli", "prepare", *map(str, words)]
    with ExitStack() as slow:
        written = slow.enter_context(atomic_folder(folder, overwrite=False))
        (written / "counts.npy").write_bytes(b"of the slow writer")
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        assert "a process still writes it" in " ".join(done.stderr.split())
        with pytest.raises(CannotCreate, match="The output exists"):
            slow.close()
    assert not list(tmp_path.glob(".*"))
    assert aam("prepare", "--table", folder, "--verify") == 0


def test_a_full_disk_leaves_no_files(
    study_dir: Path, small_disk: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for kib in (16, 32):
        disk = small_disk(kib)
        status = make(study_dir, disk / "study.aam", "--tree", study_dir / "tree.nwk")
        refused(capsys, status, CANNOT_CREATE, "The disk is full", str(disk), "study.aam")
        assert list(disk.iterdir()) == []


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
