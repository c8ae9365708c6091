"""Writing of stores by `aam prepare`: formats, bounded memory, other writers, full disks."""

from __future__ import annotations

import resource
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
from aam.contract.options.commands.studies import Prepare
from aam.contract.options.groups import PhylogenyOptions, TableOptions
from aam.data.prepare import prepare
from aam.data.study import load_study
from aam.serialization.folders import atomic_folder
from tests.data.test_table import whole, write_all, write_hdf5
from tests.support.commands import aam
from tests.support.stores import (
    CANNOT_CREATE,
    DATA,
    NO_INPUT,
    USAGE,
    make,
    refused,
    same_study,
    unifrac,
)

ROOT = Path(__file__).parents[2]


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


def test_prepare_prints_what_is_left_out(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, tree = tmp_path / "table.tsv", tmp_path / "tree.nwk"
    table.write_text(
        "#OTU ID\ts1\ts2\ts3\nACGT\t1\t0\t0\nACCT\t4\t0\t5\nTTTT\t0\t0\t2\nGG\t0\t0\t0\n"
    )
    tree.write_text("((ACGT:1,AAAA:2):1,GG:1);")
    args = ("prepare", "--table", table, "--tree", tree, "--output", tmp_path / "s.aam")
    assert aam(*args) == DATA
    assert "Samples without reads" in capsys.readouterr().err
    assert aam(*args, "--drop-empty-samples") == DATA
    assert "Features of the table are not in the tree: 2 (ACCT, TTTT)" in capsys.readouterr().err
    assert aam(*args, "--drop-empty-samples", "--drop-missing-asvs") == 0
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
    for name in ("lengths_G", "indptr", "indices"):
        one, two = getattr(found.phylogeny, name), getattr(expected.phylogeny, name)
        assert np.array_equal(one, two)
        assert one.dtype == two.dtype


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


def test_prepare_refuses_invalid_input(
    study_dir: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ("--table", study_dir / "table.biom")
    refused(capsys, aam("prepare", *table), USAGE, "--output was not given")
    again = ("--table", store, "--output", tmp_path / "again.aam")
    refused(capsys, aam("prepare", *again), USAGE, "already a prepared study")
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
    args = ("--table", study_dir / "table.biom", "--output", folder)
    command = [sys.executable, "-m", "aam.cli", "prepare", *map(str, args)]
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


@pytest.mark.parametrize(
    ("command", "name", "size"), [("prepare", "s.aam", 1024), ("unifrac", "m.npy", 4096)]
)
def test_a_limit_of_the_file_size(
    study_dir: Path, tmp_path: Path, command: str, name: str, size: int
) -> None:
    # Each limit is reached by an array that numpy.save would write without an errno.
    inputs = ("--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk")
    arguments = (command, *inputs, "--output", tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-m", "aam.cli", *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )  # fmt: skip
    assert done.returncode == CANNOT_CREATE, done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert f"exceeds the size that this process may write: '{tmp_path / name}'" in sentence
    assert "ulimit -f" in sentence
    assert not (tmp_path / name).exists()
