"""Paths of another kind (devices, pipes, folders, addresses, leftovers), and extreme options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aam.data.table import rarefy
from tests.support.bench import (
    CANNOT_CREATE,
    DATA,
    METADATA,
    NO_INPUT,
    ROOT,
    TREE,
    USAGE,
    check_refusal,
)
from tests.support.commands import aam

# Small files that are wrong in themselves


FILES: dict[str, tuple[str, str | bytes, str]] = {
    "tree of lengths that overflow": ("--tree", TREE.replace("1", "1e308"), "too large"),
    "tree without a root": ("--tree", "(ACGT:1,ACCA:1,GGTT:1);", "The tree is not rooted"),
    "sequences in UTF-16": ("--sequences", ">ACGT\nACGT\n".encode("utf-16"), "is UTF-16"),
    "matrix of a long cell": (
        "--unifrac-matrix", "\ts1\ns1\t" + "0" * 200_000 + "\n", "field larger than field limit"
    ),
    "matrix of NUL": ("--unifrac-matrix", "\ts1\ns1\t0\0\n", "is"),
    "splits of a long number": (
        "--splits",
        "sample-id\tfold\tsplit\tgroup\n" + f"s1\t{'9' * 9999}\ttrain\t\n",
        "no validation or test sample",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag, content, message = FILES[name]
    data = content.encode() if isinstance(content, str) else content
    (folder / "hostile").write_bytes(data)
    given = ["--table", folder / "table.tsv", "--output-dir", folder / "run", "--device", "cpu"]
    if flag != "--unifrac-matrix":
        given += ["--tree", folder / "tree.nwk"]
    check_refusal(capsys, aam("pretrain", *given, flag, folder / "hostile"), DATA, message)
    assert not (folder / "run").exists()


# Inputs that are no regular files


@pytest.mark.parametrize("flag", ["--table", "--metadata"])
@pytest.mark.parametrize("place", ["/dev/zero", "/proc/self/environ", "pipe"])
def test_devices_and_pipes(
    folder: Path, capsys: pytest.CaptureFixture[str], flag: str, place: str
) -> None:
    os.mkfifo(folder / "pipe")
    given = ["--table", folder / "table.tsv", "--output", folder / "s.aam", flag, folder / place]
    check_refusal(capsys, aam("prepare", *given), NO_INPUT, "is not a regular file")


# Outputs


OUTPUTS: dict[str, tuple[str, str]] = {
    "a name that is too long": ("x" * 300 + ".tsv", "too long"),
    "a path that is too long": ("/".join(["d" * 100] * 50) + "/m.tsv", "File name too long"),
    "a folder": ("full", "is a folder"),
    "a file as folder": ("table.tsv/m.tsv", "The folder cannot be created"),
    "a folder of the kernel": ("/proc/x/m.tsv", "The folder cannot be created: '/proc/x"),
}


@pytest.mark.parametrize("command", ["unifrac", "prepare", "example"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str) -> None:
    output, message = OUTPUTS[name]
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("mine")
    if command == "example":
        (folder / "full" / "metadata.tsv").mkdir()
        given = ["--output-dir", folder / output, "--samples", 3, "--asvs", 9, "--richness", 2]
        given += ["--subjects", 3, "--depth", 20]
    else:
        given = ["--table", folder / "table.tsv", "--tree", folder / "tree.nwk"]
        given += ["--output", folder / output]
        if command == "unifrac" and name == "a folder":
            (folder / "full").rename(folder / "full.tsv")
            given[-1] = folder / "full.tsv"
    check_refusal(capsys, aam(command, *given, "--overwrite"), CANNOT_CREATE, message)
    [mine] = folder.glob("full*/mine.txt")
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("pipe.tsv", "The output is a device or a pipe: '"),
        ("/proc/m.tsv", "The output cannot be written: '/proc' takes no files"),
    ],
)
def test_outputs_that_are_no_files_stay(
    folder: Path, capsys: pytest.CaptureFixture[str], place: str, message: str
) -> None:
    os.mkfifo(folder / "pipe.tsv")
    files = ("--table", folder / "table.tsv", "--tree", folder / "tree.nwk")
    status = aam("unifrac", *files, "--overwrite", "--output", folder / place)
    check_refusal(capsys, status, CANNOT_CREATE, message)
    assert (folder / "pipe.tsv").is_fifo()
    if place.startswith("/proc"):
        status = aam("prepare", *files, "--output", place)
        check_refusal(capsys, status, CANNOT_CREATE, "'/proc' takes no folders")


@pytest.mark.parametrize("command", ["unifrac", "prepare", "train"])
def test_a_path_that_is_not_utf8(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A run record could not hold it."""
    name = os.fsdecode(b"half\xff")
    files = ("--table", folder / "table.tsv", "--tree", folder / "tree.nwk")
    output = "--output"
    if command == "train":
        labels = ("--metadata", folder / "table.tsv", "--metadata-column", "ph")
        files, output = (*files[:2], *labels), "--output-dir"
    refused = "A path that is not UTF-8: "
    status = aam(command, *files, output, folder / name)
    check_refusal(capsys, status, USAGE, f"{refused}{output} '{folder}/half?'")
    (folder / name).write_bytes((folder / "table.tsv").read_bytes())
    status = aam(command, "--table", folder / name, *files[2:], output, folder / "new")
    check_refusal(capsys, status, USAGE, f"{refused}--table")


# Paths that are something else


def test_a_home_is_expanded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    given = ("--table=~/table.tsv", "--tree", "~/tree.nwk")
    assert aam("unifrac", *given, "--output=~/m.tsv") == 0
    assert (folder / "m.tsv").exists()
    assert not (folder / "~").exists()
    status = aam("unifrac", *given, "--output", "~nobody-of-this-name/m.tsv")
    check_refusal(capsys, status, USAGE, "No such user: --output ~nobody-of-this-name/m.tsv")


@pytest.mark.parametrize("address", ["http:/x", "FILE:///x", "s3://x/y"])
def test_an_address_is_not_a_path(
    folder: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    table = ("--table", folder / "table.tsv")
    check_refusal(capsys, aam("prepare", *table, "--output", address), USAGE, "An address instead")
    status = aam("prepare", f"--table={address}", "--output", folder / "s.aam")
    check_refusal(capsys, status, USAGE, f"--table {address}")


def test_leftovers_of_a_killed_process(folder: Path) -> None:
    """A process is killed while it writes; the next one removes what it left, of no other."""
    code = (
        "import os, sys; from pathlib import Path; from aam.contract.files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); print(temporary, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "table.biom")], capture_output=True, cwd=ROOT
    )
    left = Path(done.stdout.decode().strip())
    assert left.read_text() == "half"
    living = left.with_name(left.name.replace(left.stem.rpartition("-")[2], str(os.getppid())))
    foreign = left.with_name(".table.elsewhere-1.biom")
    for path in (living, foreign):
        path.write_text("of another")
    args = ("--samples", 3, "--asvs", 9, "--richness", 2, "--subjects", 3, "--depth", 20)
    assert aam("example", "--output-dir", folder, *args, "--overwrite") == 0
    assert not left.exists()
    assert living.exists()
    assert foreign.exists()


@pytest.mark.parametrize(
    ("name", "message"), [("/proc/x", "'/proc/x', No such file"), ("x" * 300, "File name too long")]
)
def test_a_run_folder_that_the_system_refuses(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    (folder / "metadata.tsv").write_text(METADATA + "".join(f"s{k}\t{k}\n" for k in range(4, 13)))
    counts = "\n".join(f"{asv}\t" + "\t".join("123456789123") for asv in ("ACGT", "ACCA", "GGTT"))
    samples = "\t".join(f"s{k}" for k in range(1, 13))
    (folder / "table.tsv").write_text(f"#OTU ID\t{samples}\n{counts}\n")
    given = ["--table", folder / "table.tsv", "--metadata", folder / "metadata.tsv"]
    given += ["--metadata-column", "x", "--members", "kernel", "--output-dir", folder / name]
    check_refusal(capsys, aam("train", *given), CANNOT_CREATE, message)


def test_a_name_with_control_characters_is_quoted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line ends, colours and pages of text of an input stay within one short line."""
    name = "a\nb\x1b[31mc\u202e" + "d" * 5000
    (folder / "metadata.tsv").write_text(METADATA)
    given = ["--table", folder / "table.tsv", "--metadata", folder / "metadata.tsv"]
    given += ["--metadata-column", name, "--output-dir", folder / "run"]
    assert aam("train", *given) == DATA
    shown = capsys.readouterr().err.splitlines()[-1]
    assert "'a\\nb\\x1b[31mc\\u202eddd" in shown and shown.endswith(".")
    assert len(shown) < 1000 and shown.startswith("aam: ")


def test_a_limit_of_open_files_is_one_sentence(folder: Path) -> None:
    code = (
        "import sys, resource; from aam.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); sys.exit(main(sys.argv[1:]))"
    )
    given = ["prepare", "--table", "table.tsv", "--output", "s.aam", "--config", "c.yaml"]
    (folder / "c.yaml").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "fds = [open('/dev/null'), open('/dev/null')]\n" + code, *given],
        capture_output=True, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 69, done.stderr
    assert done.stderr.startswith("aam: Too many open files: '")
    assert done.stderr.endswith("raise their limit with `ulimit -n`.\n")


# Options at their extremes


EXTREMES = [
    ("example", "--samples 1000000000000", USAGE, "give 2 to 10000000"),
    ("example", "--samples 10000000 --asvs 10000000 --length 10000", USAGE, "not fit in memory"),
    ("example", "--asvs 10000000 --samples 50 --length 10000 --subjects 5", USAGE, "not fit in m"),
    ("example", "--depth 1000000000000000000000", USAGE, "--depth 1000000000000000000000"),
    ("unifrac", "--max-memory-gb 1e308", USAGE, "--max-memory-gb 1e+308"),
    ("unifrac", "--max-memory-gb nan", USAGE, "--max-memory-gb nan"),
    ("train", "--test-size 1e300", USAGE, "--test-size 1e+300"),
    ("train", "--folds 1000", DATA, "to divide: 3 for 1000 parts; give --folds 2 to 3"),
    ("train", "--folds 1000000000000000000000000", DATA, "give --folds 2 to 3"),
]


@pytest.mark.parametrize(("command", "args", "status", "sentence"), EXTREMES)
def test_extremes(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    args: str,
    status: int,
    sentence: str,
) -> None:
    given: dict[str, list[object]] = {
        "example": ["--output-dir", folder / "out"],
        "unifrac": ["--table", folder / "table.tsv", "--tree", folder / "tree.nwk",
                    "--output", folder / "out.tsv"],
        "train": ["--table", folder / "table.tsv", "--metadata", folder / "metadata.tsv",
                     "--metadata-column", "x", "--output-dir", folder / "out"],
    }  # fmt: skip
    check_refusal(capsys, aam(command, *given[command], *args.split()), status, sentence)
    assert not list(folder.glob("out*"))


def test_rarefaction_of_a_billion_reads() -> None:
    """Counts above 10^9 a sample are drawn as smaller ones are: in proportion, without return."""
    counts = np.array([2**31 - 1, 2**31 - 1, 10, 0], dtype=np.int32)
    drawn = rarefy(counts, 20_000, "s", seed=1, draw=0)
    assert drawn.sum() == 20_000
    assert drawn[3] == 0
    assert abs(drawn[0] - 10_000) < 5 * np.sqrt(5_000)
    assert np.array_equal(drawn, rarefy(counts, 20_000, "s", seed=1, draw=0))
    few = np.array([10**9, 4, 3], dtype=np.int32)
    kept = rarefy(few, 10**9 + 5, "s", seed=1, draw=0)
    assert kept.sum() == 10**9 + 5
    assert (kept <= few).all()
