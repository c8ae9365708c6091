"""Sequences: look-up, comparison with their ids, and encoding."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aam.contract.errors import DataError, MissingInput
from aam.data.phylogeny import read_phylogeny
from aam.data.sequences import (
    decode,
    encode,
    read_sequences,
    sequences_of,
)
from aam.nucleotide_codes import AMBIGUOUS, MASK, PAD, VOCABULARY
from tests.support.artifacts import write_artifact

dna = st.text(alphabet="ACGTN", min_size=1, max_size=30)


def fasta(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@given(st.lists(dna, max_size=20), st.none() | st.integers(1, 30))
def test_decode_inverts_encode(sequences: list[str], max_bp: int | None) -> None:
    codes, kept = encode(sequences, max_bp), [dna[:max_bp] for dna in sequences]
    assert codes.dtype == np.uint8
    assert codes.shape == (len(kept), max(map(len, kept), default=0))
    assert decode(codes) == tuple(kept)


def test_codes_follow_the_vocabulary() -> None:
    assert (VOCABULARY[PAD], VOCABULARY[AMBIGUOUS], VOCABULARY[MASK]) == ("-", "N", "?")
    assert encode(["ACGTN", "AC"], None).tolist() == [[1, 2, 3, 4, 5], [1, 2, 0, 0, 0]]
    assert decode(np.array([[1, MASK, 2]], dtype=np.uint8)) == ("A?C",)
    assert set(encode(["NRYSWKMBDHV"], None).ravel().tolist()) == {AMBIGUOUS}


def test_lower_case_and_u_are_read_with_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert decode(encode(["acgu", "ACGU", "ACGA"], None)) == ("ACGT", "ACGT", "ACGA")
    shown = capsys.readouterr().err
    assert "Lower case or U is read as A, C, G, T in 2 of 3 sequences." in shown
    encode(["ACGTA", "ACG"], 3)
    shown = capsys.readouterr().err
    assert "Cut to 3 nucleotides: 1 of 2" in shown
    encode(["ACG", "TTT"], 3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        (["AC-T", "ACGT", "A.GT"], "gaps.*'-', '.' in 2 .AC-T, A.GT. of 3 .*give unaligned"),
        (["ACXT"], "letters.*'X' in 1 .ACXT. of 1 sequences.*IUPAC"),
        (["ACÄT"], "letters.*'Ä'"),
        (["AC T"], "letters.*' '"),
        (["ACGT", ""], "Empty sequences: 1 of 2"),
    ],
)
def test_other_letters_are_refused(sequences: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode(sequences, None)


def test_fasta(tmp_path: Path) -> None:
    text = ">a first\nACGT\nAC\n\n>b\r\nGGG\r\n"
    expected = {"a": "ACGTAC", "b": "GGG"}
    assert read_sequences(fasta(tmp_path / "s.fasta", text)) == expected
    (tmp_path / "s.fasta.gz").write_bytes(gzip.compress(text.encode()))
    assert read_sequences(tmp_path / "s.fasta.gz") == expected
    files = {"dna-sequences.fasta": text.encode()}
    for number, kind in enumerate(("FeatureData[Sequence]", "FeatureData[Sequence | Taxonomy]")):
        path = write_artifact(tmp_path / f"{number}.qza", kind, files)
        assert read_sequences(path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Not FASTA.*empty"),
        ("@r\nACGT\n+\nIIII\n", "Not FASTA.*begins with '@r"),
        (">a\nAC\n>b\nAC\n>a\nGT\n", r"Duplicated sequence ids.*1 \(a\); keep one"),
        (">a 1\nAC\n>a 2\nGT\n", r"Duplicated sequence ids.*1 \(a\); write '_' for the blanks"),
        (">a\n>b\nAC\n", r"without an id or a sequence.*1 \(a\)"),
        ("> \nAC\n", "without an id or a sequence"),
    ],
)
def test_text_that_is_not_fasta_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"(?s){message}"):
        read_sequences(fasta(tmp_path / "s.fasta", text))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda name: f"{name};size=12", "text after ';'"),
        (str.lower, "upper and lower case"),
        (lambda name: name.replace(" ", "_"), "blanks and '_'"),
    ],
)
def test_ids_that_nearly_agree_are_explained(
    tmp_path: Path, change: Callable[[str], str], reason: str
) -> None:
    """Those of a FASTA file and of a tree alike."""
    ids = [f"ASV {number}" for number in range(4)]
    with pytest.raises(DataError, match=f"make the ids alike: they differ in {reason}"):
        sequences_of(ids, {change(name): "ACGT" for name in ids})
    tips = ",".join(f"'{change(name)}':1" for name in ids[:2])
    (tmp_path / "tree.nwk").write_text(f"(({tips}):1,'{change(ids[2])}':1);")
    with pytest.raises(DataError, match=f"make the ids alike: they differ in {reason}"):
        read_phylogeny(tmp_path / "tree.nwk", ids[:3])


def test_binary_and_absent_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.fasta").write_bytes(b">a\xff\nACGT\n")
    with pytest.raises(DataError, match=r"not UTF-8 text"):
        read_sequences(tmp_path / "s.fasta")
    with pytest.raises(MissingInput, match=r"does not exist"):
        read_sequences(tmp_path / "t.fasta")
    path = write_artifact(tmp_path / "a.qza", "FeatureData[AlignedSequence]", {})
    with pytest.raises(DataError, match=r"another type.*AlignedSequence"):
        read_sequences(path)


def test_hashes_need_a_file() -> None:
    ids = tuple(hashlib.md5(str(n).encode()).hexdigest() for n in range(7))
    with pytest.raises(
        DataError, match=r"not sequences, of 8 features: 7 \(.*\.\.\.\).*--sequences"
    ):
        sequences_of((*ids, "ACGT"), None)
    assert sequences_of(("ACGT", "ggu"), None) == ("ACGT", "ggu")


def test_ids_are_looked_up_and_hashes_checked(tmp_path: Path) -> None:
    md5, sha1 = hashlib.md5(b"ACGT").hexdigest(), hashlib.sha1(b"GGTT").hexdigest()
    path = fasta(tmp_path / "s.fasta", f">{md5}\nacgt\n>{sha1}\nGGUU\n>plain\nTT\n")
    assert sequences_of(("plain", sha1, md5), path) == ("TT", "GGUU", "acgt")
    path.write_text(f">{md5}\nACG\n>plain\nTT\n")
    with pytest.raises(DataError, match=rf"hash is not their id: 1 \({md5}\).*untrimmed"):
        sequences_of((md5, "plain"), path)
