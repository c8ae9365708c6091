"""`aam inspect`: findings about real and hostile data, in one pass."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
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


def inspected(*args: object) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """Return the exit status, and the texts by severity and subject."""
    with redirect_stdout(io.StringIO()) as printed:
        status = aam("inspect", *args, "--json")
    content: dict[str, Any] = json.loads(printed.getvalue())
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
    status, found = inspected(*args, *tree, "--metadata-column", "ph")
    assert inspected(args[0], args[2], "ph", *tree) == (status, found)
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
    assert f"Data: {samples} samples with 'ph'" in " ".join(found["fact", "target"])
    assert aam("inspect", *args, *tree, "--metadata-column", "ph") == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert [line for line in printed.splitlines() if line.startswith("ph  ")]


def test_everything_that_is_noteworthy_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "m.tsv").write_text(METADATA)
    path = table(tmp_path, ["s1", "s2", "s3", "s4", "s5", "s6"])
    args = (path, "--metadata", tmp_path / "m.tsv")
    status, found = inspected(*args, "--metadata-column", "site")
    assert status == 0
    assert found["warning", "reads"] == ["fewer than 1000 in samples 6 (s1, s2, s3, s4, s5, ...)"]
    assert any("several regions" in text for text in found["warning", "sequences"])
    assert (
        "Reads of equal sequences are summed: 4 ASVs have 3 different ones."
        in found["fact", "sequences"]
    )
    assert "more samples than ASVs" in found["warning", "table"][0]
    assert found["warning", "ids"] == ["samples without metadata: 1 (s6)"]
    assert found["warning", "batch"] == ["one value only, 'x'"]
    assert found["warning", "empty"] == ["empty"]
    assert found["warning", "site"] == ["values that differ in case alone: 2 (gut, Gut)"]
    assert found["fact", "age"][0].endswith("1 of 5 missing")
    assert any("'site' has words" in text for text in found["fact", "target"])
    assert any(
        "gut and Gut" in text or "Gut and gut" in text for text in found["warning", "target"]
    )
    assert any("(1 without metadata)" in text for text in found["fact", "target"])


@pytest.mark.parametrize(
    ("cell", "reason"), [("x", "1 of 4 values are not numbers"), ("4,05", "decimal points")]
)
def test_a_cell_that_is_no_number_is_named_as_aam_train_does(
    cell: str, reason: str, tmp_path: Path
) -> None:
    rows = "\n".join(f"s{number}\t{number}.5" for number in range(1, 4))
    (tmp_path / "m.tsv").write_text(f"sample-id\tph\n{rows}\ns4\t{cell}\ns5\t#N/A\n")
    path = table(tmp_path, ["s1", "s2", "s3", "s4", "s5", "s6"])
    args = ("--metadata", tmp_path / "m.tsv", "--metadata-column", "ph")
    status, found = inspected(path, *args)
    assert status == 65
    assert found["error", "target"][0].startswith("The column 'ph' is not numeric: 1 of 4")
    assert reason in found["error", "target"][0]
    assert ("warning", "target") not in found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (str.upper, "upper and lower case"),
        (lambda name: f"10249.run.{name}", "a prefix"),
        (lambda name: f"{name}_S1_L001", "a suffix"),
        (lambda name: f"00{name}", "zeros at the beginning or the end"),
        (lambda name: name.replace("s", "t"), ""),
    ],
)
def test_ids_that_do_not_overlap_have_a_likely_reason(
    tmp_path: Path, change: Any, reason: str
) -> None:
    (tmp_path / "m.tsv").write_text(METADATA)
    path = table(tmp_path, [change(f"s{k}") for k in range(1, 6)])
    status, found = inspected(path, "--metadata", tmp_path / "m.tsv")
    assert status == 65
    (text,) = found["error", "ids"]
    assert "no sample in common" in text
    assert ("they differ in" in text) == bool(reason)
    assert reason in text
    # Half of the samples without metadata are no error.
    path = table(tmp_path, [change("s1"), change("s2"), change("s3"), "s4", "s5"])
    status, found = inspected(path, "--metadata", tmp_path / "m.tsv")
    assert status == 0
    assert reason in found["warning", "ids"][0]


def test_what_the_readers_refuse_are_findings_of_one_pass(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("no tabs here\n")
    (tmp_path / "tree.nwk").write_text("((a,b")
    path = table(tmp_path, ["s1", "s2"], ["d__Bacteria;p__Firmicutes", "d__Bacteria;p__Other"])
    status, found = inspected(
        path, "--metadata", tmp_path / "bad.tsv", "--tree", tmp_path / "tree.nwk"
    )
    assert status == 65
    assert {"sequences", "tree", "metadata"} <= {name for kind, name in found if kind == "error"}
    assert "names of taxa" in found["warning", "sequences"][0]
    (tmp_path / "damaged.biom").write_bytes(b"\x89HDF\r\n\x1a\n broken")
    (tmp_path / "m.tsv").write_text(METADATA)
    status, found = inspected(
        tmp_path / "damaged.biom", "--metadata", tmp_path / "m.tsv", "--metadata-column", "Age"
    )
    assert status == 65 and ("error", "table") in found
    assert "no column 'Age'" in found["error", "target"][0]
    assert ("fact", "metadata") in found


def test_a_prepared_study_is_inspected(study_dir: Path, tmp_path: Path) -> None:
    store = tmp_path / "study.aam"
    args = ("--table", study_dir / "table.biom", "--tree", study_dir / "tree.nwk")
    assert aam("prepare", *args, "--output", store) == 0
    status, found = inspected(store)
    assert status == 0
    assert found["fact", "table"] == inspected(study_dir / "table.biom")[1]["fact", "table"]


def test_mistakes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert aam("inspect", "none.biom") == 66
    assert aam("inspect", __file__, "--metadata-column", "age") == 64
    assert "--metadata-column age without --metadata" in capsys.readouterr().err
    (tmp_path / "m.tsv").write_text(METADATA)
    args = (table(tmp_path, ["s1", "s2"]), "--metadata", tmp_path / "m.tsv")
    assert aam("inspect", *args, "--classifier") == 64
    assert aam("inspect", *args, "--metadata-column", "age", "--group-column", "Subject") == 65
    assert "did you mean 'subject'" in capsys.readouterr().out


def study_of_subjects(folder: Path, subjects: int = 20) -> tuple[Any, ...]:
    """Write a study of two samples of each subject; return the options of its files."""
    ids = [f"s{k}" for k in range(2 * subjects)]
    rows = [
        f"{name}\t{k // 2}.5\t{k // 2 * 365}\tp{k // 2}\t{'ab'[k % 2]}"
        for k, name in enumerate(ids)
    ]
    header = "sample-id\tage\tdays\tsubject_id\tsite"
    (folder / "m.tsv").write_text("\n".join([header, *rows]) + "\n")
    return table(folder, ids), "--metadata", folder / "m.tsv"


def test_what_a_training_would_do_is_previewed(tmp_path: Path) -> None:
    args = (*study_of_subjects(tmp_path), "--metadata-column", "age")
    status, found = inspected(*args)
    assert status == 0
    facts, warnings = " ".join(found["fact", "target"]), found["warning", "target"]
    assert "Data: 40 samples with 'age', 3 ASVs; a number from 0.5 to 19.5, median 10." in facts
    assert "5-fold cross-validation repeated 5 times, 8 samples held out" in facts
    # Samples of a subject are not alike here: the name is another form of the age.
    assert not [text for text in warnings if "several similar samples" in text]
    assert any(text.startswith("'days' determines 'age'") for text in warnings)
    _, found = inspected(*args, "--group-column", "subject_id")
    assert not [text for text in found["warning", "target"] if "several similar samples" in text]
    facts = " ".join(found["fact", "target"])
    assert "each 'subject_id' (20) entirely in training or in test" in facts


def test_a_training_prints_the_same_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *metadata = study_of_subjects(tmp_path)
    column = ("--metadata-column", "age", "--members", "kernel")
    _, found = inspected(path, *metadata, *column)
    expected = found["fact", "target"] + found["warning", "target"]
    words = (*column, "--repeats", "auto", "--output-dir", tmp_path / "run")
    assert aam("train", "--table", path, *metadata, *words) == 0
    printed = capsys.readouterr().err.splitlines()
    # The memory that is available changes meanwhile.
    lines = {line.removeprefix("warning: ").partition(" of memory (")[0] for line in printed}
    assert len(expected) > 3
    (other,) = {text.partition(" of memory (")[0] for text in expected} - lines
    # Of the columns that alone predict, a training names those that do as well as its model.
    assert other.startswith("Columns that alone predict 'age'") and "'subject_id'" in other
    assert any(line.startswith("'subject_id' alone predicts the target") for line in lines)


def test_the_transformer_loses_samples_below_its_depth(tmp_path: Path) -> None:
    path, *metadata = study_of_subjects(tmp_path)
    lines = path.read_text().splitlines()
    shallow = [line.split("\t") for line in lines]
    for cells in shallow[2:]:
        cells[1] = "0"
    path.write_text("\n".join("\t".join(cells) for cells in shallow) + "\n")
    column = ("--metadata-column", "age", "--members", "transformer", "kernel")
    _, found = inspected(path, *metadata, *column)
    facts = " ".join(found["fact", "target"])
    assert "reads are left out, of all members: 1 (s0)" in facts
    assert "Data: 39 samples with 'age'" in facts


def test_ids_and_metadata_are_inspected_though_the_counts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.tsv").write_text(METADATA)
    path = table(tmp_path, ["s1", "x2"])
    path.write_text(re.sub(r"\t\d+\n", "\t-1\n", path.read_text()))
    status, found = inspected(path, "--metadata", tmp_path / "m.tsv", "--metadata-column", "age")
    assert status == 65
    assert "Negative counts" in found["error", "table"][0]
    assert found["warning", "ids"] == ["samples without metadata: 1 (x2)"]
    assert found["warning", "empty"] == ["empty"]
    path = table(tmp_path, ["x1", "x2"])
    path.write_text(re.sub(r"\t\d+\n", "\t-1\n", path.read_text()))
    status, found = inspected(path, "--metadata", tmp_path / "m.tsv")
    assert status == 65
    assert "Negative counts" in found["error", "table"][0]
    assert "no sample in common" in found["error", "ids"][0]
    assert ("fact", "sequences") in found


def test_a_sample_without_reads_is_an_error_as_in_training(tmp_path: Path) -> None:
    path = table(tmp_path, ["s1", "s2", "s3"])
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    text = "".join("\t".join([*cells[:2], "0", cells[3]]) + "\n" for cells in lines[1:])
    path.write_text("\t".join(lines[0]) + "\n" + text)
    status, found = inspected(path)
    assert status == 65
    assert "Samples without reads" in found["error", "table"][0]
    assert any("2 samples x 4 ASVs" in fact for fact in found["fact", "table"])
    status, found = inspected(path, "--drop-empty-samples")
    assert status == 0 and ("error", "table") not in found


def test_the_tree_of_another_region_or_without_some_tips(tmp_path: Path) -> None:
    path = table(tmp_path, ["s1", "s2"])
    tree = tmp_path / "tree.nwk"
    tree.write_text(f"(({DNA[0]}:1,{DNA[1]}:1):1,{DNA[2]}:1);")
    status, found = inspected(path, "--tree", tree)
    assert status == 0
    assert found["fact", "tree"] == ["has 3 of 4 ASVs"]
    assert re.match(r"lacks 1 ASVs with \d+\.\d% of the reads", found["warning", "tree"][0])
    tree.write_text("((x:1,y:1):1,z:1);")
    status, found = inspected(path, "--tree", tree)
    assert status == 65 and "None of the table's features" in found["error", "tree"][0]


def test_byte_order_marks_long_ids_and_right_to_left_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [f"{'x' * 297}{k:03}" for k in range(12)]
    path = table(tmp_path, ids)
    path.write_text("\ufeff" + path.read_text())
    rows = [f"{name}\t{k}\t{k % 2}" for k, name in enumerate(ids)]
    column = "\u05d2\u05d9\u05dc"  # "age" in Hebrew
    (tmp_path / "m.tsv").write_text(
        "\n".join([f"\ufeffsample-id\t{column}\t{'y' * 300}", *rows]) + "\n"
    )
    args = (path, "--metadata", tmp_path / "m.tsv", "--metadata-column", column)
    assert aam("inspect", *args) == 0
    printed = capsys.readouterr().out
    assert f"Data: 12 samples with '{column}'" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_many_columns_and_classes_are_counted_not_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [f"s{k}" for k in range(1000)]
    columns = [f"c{k}" for k in range(80)]
    rows = [
        "\t".join([name, f"class {k % 500}", *(str(k % 7) for _ in columns)])
        for k, name in enumerate(ids)
    ]
    header = "\t".join(["sample-id", "kind", *columns])
    (tmp_path / "m.tsv").write_text("\n".join([header, *rows]) + "\n")
    assert aam("inspect", table(tmp_path, ids), "--metadata", tmp_path / "m.tsv") == 0
    printed = capsys.readouterr().out
    assert "1000 samples, 81 columns" in printed
    assert len(printed.splitlines()) < 40


def test_columns_of_one_value_are_grouped_and_the_example_is_one_region(
    study_dir: Path, tmp_path: Path
) -> None:
    names = load_table(str(study_dir / "table.biom")).ids().tolist()
    header = "\t".join(["sample-id", *(f"c{k}" for k in range(45))])
    rows = ["\t".join([name, *["same"] * 45]) for name in names]
    (tmp_path / "m.tsv").write_text("\n".join([header, *rows]) + "\n")
    _, found = inspected(study_dir / "table.biom", "--metadata", tmp_path / "m.tsv")
    assert found["warning", "columns"] == ["one value only: 45 (c0, c1, c2, c3, c4, ...)"]
    assert not [key for key in found if key[1].startswith("c0")]
    assert ("warning", "sequences") not in found


def test_columns_are_not_tested_for_a_target_of_too_many_classes(tmp_path: Path) -> None:
    """Each class is an AUC of each column: 2,500 classes took eight minutes."""
    ids = [f"s{n}" for n in range(210)]
    rows = [f"{name}\tw{n // 2}\t{n}\n" for n, name in enumerate(ids)]
    metadata = tmp_path / "metadata.tsv"
    metadata.write_text("sample-id\tname\torder\n" + "".join(rows))
    given = ("--metadata", metadata, "--metadata-column", "name")
    status, found = inspected(table(tmp_path, ids, DNA[:2]), *given)
    assert status == 0
    (sentence,) = (text for text in found["warning", "target"] if "confounding" in text)
    assert "not tested for confounding: the target has 105 classes" in sentence


def test_control_characters_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by findings nor by the tables of results."""
    path = table(tmp_path, ["s1", "s2"])
    text = METADATA.replace("skin", "sk\x1b[31min").replace("site", "si\x1b[2Jte")
    (tmp_path / "m.tsv").write_text(text.replace("s3", "s2").replace("s4", "s9"))
    assert aam("inspect", path, "--metadata", tmp_path / "m.tsv") in (0, 65)
    (tmp_path / "p.tsv").write_text("sample-id\tpredicted\n" + "s1\t3\ns2\t4\ns5\t2\n")
    (tmp_path / "n.tsv").write_text(text)
    given = ["--predictions", str(tmp_path / "p.tsv"), "--metadata", str(tmp_path / "n.tsv")]
    assert aam("evaluate", *given, "--metadata-column", "age", "--by", "si\x1b[2Jte") == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "x1b" in shown.out
