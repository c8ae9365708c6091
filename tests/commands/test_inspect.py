"""`aam inspect`: findings about real and hostile data, in one pass."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from biom import load_table

from tests.support.commands import aam

METADATA = """sample-id\tage\tsite\tsubject\tbatch\tempty
s1\t3.5\tgut\ta\tx\t
s2\t4\tGut\ta\tx\t
s3\t\tskin\tb\tx\t
s4\t7.25\tskin\tb\tx\t
s5\t1\tgut\tc\tx\t
"""
DNA = ["ACGTACGTAC", "ACGTACGTAG", "acgtacgtac", "ACGTACGTAT" * 8]


def table(folder: Path, ids: list[str], features: list[str] = DNA) -> Path:
    rows = [
        f"{name}\t" + "\t".join(str((7 * k + 3 * n) % 5 + 1) for n in range(len(ids)))
        for k, name in enumerate(features)
    ]
    path = folder / "table.tsv"
    path.write_text("\n".join(["#OTU ID\t" + "\t".join(ids), *rows]) + "\n")
    return path


def inspected(folder: Path, *args: object) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """Return the exit status, and the texts by severity and subject."""
    output = folder / "findings.json"
    status = aam("inspect", *args, "--output", output, "--overwrite")
    content: dict[str, Any] = json.loads(output.read_text())
    assert content["status"] == status
    found: dict[tuple[str, str], list[str]] = {}
    for one in content["findings"]:
        found.setdefault((one["severity"], one["subject"]), []).append(one["text"])
    return status, found


def test_a_study_without_faults(
    study_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (study_dir / "table.biom", "--metadata", study_dir / "metadata.tsv")
    tree = ("--tree", study_dir / "tree.nwk")
    status, found = inspected(tmp_path, *args, *tree, "--metadata-column", "ph")
    assert status == 0 and not [key for key in found if key[0] == "error"]
    real = load_table(str(study_dir / "table.biom"))
    features, samples = real.shape
    assert found["fact", "table"][0].startswith(f"{samples} samples x ")
    reads = real.sum("sample")
    (shown,) = found["fact", "reads"]
    assert shown.startswith(f"{reads.min():.0f} to {reads.max():.0f}, median ")
    assert shown.endswith(f"{reads.sum():.0f} in all")
    assert re.fullmatch(r"has (\d+) of \1 ASVs", found["fact", "tree"][0])
    assert found["fact", "ids"] == [f"{samples} of {samples} samples of the table have metadata"]
    assert found["fact", "ph"][0].startswith("numbers, ")
    assert features >= int(found["fact", "table"][0].split()[3])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert [line for line in printed.splitlines() if line.startswith("ph  ")]


def test_everything_that_is_noteworthy_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "m.tsv").write_text(METADATA)
    path = table(tmp_path, ["s1", "s2", "s3", "s4", "s5", "s6"])
    args = (path, "--metadata", tmp_path / "m.tsv")
    status, found = inspected(tmp_path, *args, "--metadata-column", "site")
    assert status == 0
    assert found["warning", "reads"] == ["samples with less than 1000: 6 (s1, s2, s3, s4, s5, ...)"]
    assert any("several regions" in text for text in found["warning", "sequences"])
    assert any(
        text.startswith("1 are those of another ASV") for text in found["warning", "sequences"]
    )
    assert "more samples than ASVs" in found["warning", "table"][0]
    assert found["warning", "ids"] == ["samples without metadata: 1 (s6)"]
    assert found["warning", "batch"] == ["one value only, 'x'"]
    assert found["warning", "empty"] == ["empty"]
    assert found["warning", "site"] == ["values that differ in case alone: 2 (gut, Gut)"]
    assert found["fact", "age"][0].endswith("1 of 5 missing")
    texts = found["warning", "target"]
    assert any("--classifier or --ordinal" in text for text in texts)
    assert any("less than 5 samples: 3 (gut, Gut, skin)" in text for text in texts)
    (leak,) = found["warning", "groups"]
    assert leak.startswith("2 of 'subject' have several samples")
    assert leak.endswith("a random split leaks, give --group-column subject")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (str.upper, "upper and lower case"),
        (lambda name: f"study.{name}", "a prefix"),
        (lambda name: f"{name}_L001", "a suffix"),
        (lambda name: name.replace("s", "s_"), "no reason"),
    ],
)
def test_ids_that_do_not_overlap_have_a_likely_reason(
    tmp_path: Path, change: Any, reason: str
) -> None:
    (tmp_path / "m.tsv").write_text(METADATA)
    path = table(tmp_path, [change(f"s{k}") for k in range(1, 6)])
    status, found = inspected(tmp_path, path, "--metadata", tmp_path / "m.tsv")
    assert status == 65
    (text,) = found["error", "ids"]
    assert "no sample in common" in text
    assert (f"alike apart from {reason}" in text) == (reason != "no reason")


def test_what_the_readers_refuse_are_findings_of_one_pass(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("no tabs here\n")
    (tmp_path / "tree.nwk").write_text("((a,b")
    path = table(tmp_path, ["s1", "s2"], ["d__Bacteria;p__Firmicutes", "d__Bacteria;p__Other"])
    status, found = inspected(
        tmp_path, path, "--metadata", tmp_path / "bad.tsv", "--tree", tmp_path / "tree.nwk"
    )
    assert status == 65
    assert {"sequences", "tree", "metadata"} <= {name for kind, name in found if kind == "error"}
    assert "ids of ASVs are taxa" in found["warning", "sequences"][0]
    (tmp_path / "damaged.biom").write_bytes(b"\x89HDF\r\n\x1a\n broken")
    (tmp_path / "m.tsv").write_text(METADATA)
    status, found = inspected(
        tmp_path, tmp_path / "damaged.biom", "--metadata", tmp_path / "m.tsv",
        "--metadata-column", "Age",
    )  # fmt: skip
    assert status == 65 and ("error", "table") in found
    assert "no column 'Age'" in found["error", "target"][0]
    assert ("fact", "metadata") in found


def test_a_prepared_study_is_inspected(study_dir: Path, tmp_path: Path) -> None:
    store = tmp_path / "study.aam"
    args = ("--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk")
    assert aam("prepare", *args, "--output", store) == 0
    status, found = inspected(tmp_path, store)
    assert status == 0
    assert (
        found["fact", "table"] == inspected(tmp_path, study_dir / "table.biom")[1]["fact", "table"]
    )


def test_mistakes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("inspect", "none.biom") == 66
    assert aam("inspect", __file__, "--metadata-column", "age") == 64
    assert "--metadata-column age without --metadata" in capsys.readouterr().err
    (tmp_path / "f.json").touch()
    assert aam("inspect", table(tmp_path, ["s1"]), "--output", tmp_path / "f.json") == 73


@pytest.mark.medium
def test_a_large_study_takes_seconds(tmp_path: Path) -> None:
    """1,000 samples and 20,000 ASVs: 2.8 CPU-seconds on two busy cores, with 2 of imports."""
    args = ("--samples", "1000", "--asvs", "20000", "--output-dir", tmp_path / "study")
    assert aam("simulate", *args) == 0
    program = [sys.executable, "-m", "aam", "inspect", str(tmp_path / "study" / "table.biom")]
    program += ["--metadata", str(tmp_path / "study" / "metadata.tsv"), "--metadata-column", "ph"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "1000 samples x" in done.stdout
    assert after.ru_utime - before.ru_utime < 5
