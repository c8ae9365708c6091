"""Sequences of the features: look-up by id, validation, and encoding as integers.

A feature id is either the sequence itself (Deblur, Qiita) or its hash, for which representative
sequences are needed (QIIME 2). Sequences are not aligned; `encode` may cut their ends.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aam.console import info
from aam.contract.errors import DataError, first_few
from aam.contract.files import require
from aam.data.formats import artifact
from aam.data.formats.text import decoded, id_remedy
from aam.memory import check_memory, memory_budget
from aam.nucleotide_codes import AMBIGUOUS, PAD, VOCABULARY

_AMBIGUITY_LETTERS = "NRYSWKMBDHV"
_UNKNOWN = 255
_FASTA_BYTES = 6  # bytes of memory per byte of FASTA while reading
_HASHES = {32: hashlib.md5, 40: hashlib.sha1}
_LIKE_SEQUENCE = re.compile(rf"[ACGTU{_AMBIGUITY_LETTERS}.-]+", re.IGNORECASE)


_CODE_OF_LETTER = {"A": 1, "C": 2, "G": 3, "T": 4, "U": 4} | dict.fromkeys(
    _AMBIGUITY_LETTERS, AMBIGUOUS
)
_CODE_OF_BYTE = np.array(
    [_CODE_OF_LETTER.get(chr(byte).upper(), _UNKNOWN) for byte in range(256)], dtype=np.uint8
)
"""Code of each byte; `_UNKNOWN` unless it is a nucleotide letter (IUPAC)."""


def read_sequences(path: Path, max_bytes: int | None = None) -> dict[str, str]:
    """Read FASTA (gzipped or not) or a FeatureData[Sequence] artifact: id -> sequence."""
    budget = max_bytes or memory_budget()
    name, semantic = "dna-sequences.fasta", "FeatureData[Sequence"
    data = artifact.read_payload(require(path, "sequences"), name, semantic, budget // _FASTA_BYTES)
    text = decoded(data, path, "sequences file").strip().replace("\r\n", "\n").replace("\r", "\n")
    if not text.startswith(">"):
        start = f"'{path}' begins with '{text[:40]}'" if text else f"'{path}' is empty"
        raise DataError("Not FASTA", start, "give records that begin with '>'")
    sequences: dict[str, str] = {}
    twice, empty, headers = [], [], set()
    for record in text[1:].split("\n>"):
        header, _, body = record.partition("\n")
        headers.add(header)
        name = (header.split() or [""])[0]
        sequence = "".join(body.split())
        if name in sequences:
            twice.append(name)
        if not sequence or not name:
            empty.append(name or header)
        sequences[name] = sequence
    if twice:
        cause = f"Duplicated sequence ids in '{path}'"
        different = len(headers) == len(sequences) + len(twice)
        cut = "write '_' for the blanks of ids: an id ends at the first blank"
        raise DataError(cause, first_few(twice), cut if different else "keep one record of each")
    if empty:
        cause = f"Records without an id or a sequence in '{path}'"
        raise DataError(cause, first_few(empty), "remove them")
    return sequences


def is_sequence(name: str) -> bool:
    """Return whether a feature id is a sequence: nucleotide letters and gaps only.

    >>> is_sequence("TACGGAGG"), is_sequence("d29fe3c70564fc0f69f2c03e0d1e5561")
    (True, False)
    """
    return _LIKE_SEQUENCE.fullmatch(name) is not None


def as_dna(sequence: str) -> str:
    """Normalize a sequence: upper case, T for U.

    >>> as_dna("acgu")
    'ACGT'
    """
    return sequence.upper().replace("U", "T")


def sequences_of(
    feature_ids: Sequence[str],
    records: Path | Mapping[str, str] | None,
    max_bytes: int | None = None,
) -> tuple[str, ...]:
    """Look up the sequence of each feature: the id itself, or the record with this id.

    Ids of 32 or 40 hexadecimal digits must be the MD5 or SHA-1 of the sequence, as in QIIME 2.
    """
    if records is None:
        unlike = [name for name in feature_ids if not is_sequence(name)]
        if unlike:
            raise DataError(
                f"Feature ids that are not sequences, of {len(feature_ids)} features",
                first_few(unlike),
                "give their representative sequences with --sequences",
            )
        return tuple(feature_ids)
    source = f"'{records}'" if isinstance(records, Path) else "the dictionary"
    sequence_of = read_sequences(records, max_bytes) if isinstance(records, Path) else records
    absent = [name for name in feature_ids if name not in sequence_of]
    if absent:
        raise DataError(
            f"Features without a sequence in {source}",
            f"{first_few(absent)} of {len(feature_ids)}; it holds {first_few(sequence_of)}",
            "leave --sequences out: the ids of the table are sequences"
            if all(is_sequence(name) for name in feature_ids)
            else id_remedy(
                feature_ids, sequence_of, "give the representative sequences that were made with it"
            ),
        )
    sequences = tuple(sequence_of[name] for name in feature_ids)
    wrong = []
    for name, dna in zip(feature_ids, sequences, strict=True):
        digest = _HASHES.get(len(name))
        if digest is not None and re.fullmatch("[0-9a-fA-F]+", name):
            # vsearch hashes upper case with T for U, QIIME 2 the unchanged letters.
            spellings = {dna, dna.upper(), as_dna(dna)}
            if all(digest(spelling.encode()).hexdigest() != name.lower() for spelling in spellings):
                wrong.append(name)
    if wrong:
        raise DataError(
            f"Sequences in {source} whose hash is not their id",
            first_few(wrong),
            "give the sequences that were made with this table, untrimmed (--max-bp cuts them)",
        )
    return sequences


def encode(
    sequences: Sequence[str], max_bp: int | None, max_bytes: int | None = None
) -> NDArray[np.uint8]:
    """Encode sequences as indices into `VOCABULARY`, padded on the right.

    Lower case and U are read as A, C, G, T. Messages count the normalized and the cut sequences.

    >>> encode(["ACGT", "AN"], max_bp=None).tolist()
    [[1, 2, 3, 4], [1, 5, 0, 0]]
    """
    trimmed = [sequence[:max_bp] for sequence in sequences]
    lengths = np.array([len(sequence) for sequence in trimmed], dtype=np.int64)
    if not lengths.all():
        raise DataError(
            "Empty sequences", f"{int((lengths == 0).sum())} of {len(trimmed)}", "remove them"
        )
    longest = int(lengths.max(initial=0))
    check_memory(
        "array of sequences",
        f"{len(trimmed)} x {longest} nucleotides",
        2 * len(trimmed) * longest,  # the codes, and a mask of the same size
        max_bytes or memory_budget(),
        "cut them with --max-bp, or raise --max-memory-gb",
    )
    text = "".join(trimmed)
    # One byte per letter, so positions in the bytes equal positions in the text. A letter beyond
    # ASCII becomes '?' and is refused below.
    flat = _CODE_OF_BYTE[np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)]
    if (flat == _UNKNOWN).any():
        nucleotides = {chr(byte) for byte in np.flatnonzero(_CODE_OF_BYTE != _UNKNOWN)}
        letters = sorted(set(text) - nucleotides)
        wrong = [sequence for sequence in trimmed if not nucleotides.issuperset(sequence)]
        gapped = not set(letters).isdisjoint("-.")
        raise DataError(
            f"Sequences with {'gaps' if gapped else 'letters'} that are not nucleotides",
            f"{', '.join(repr(letter) for letter in letters)} in {first_few(wrong)} of "
            f"{len(trimmed)} sequences",
            "give unaligned sequences" if gapped else "give DNA in IUPAC letters",
        )
    codes = np.zeros((len(trimmed), longest), dtype=np.uint8)
    codes[np.arange(longest) < lengths[:, None]] = flat
    if normalized := sum(1 for dna in trimmed if not dna.isupper() or "U" in dna):
        info(f"Lower case or U is read as A, C, G, T in {normalized} of {len(trimmed)} sequences.")
    if cut := sum(len(full) > len(short) for full, short in zip(sequences, trimmed, strict=True)):
        info(f"Cut to {longest} nucleotides: {cut} of {len(trimmed)} sequences were longer.")
    return codes


def decode(codes: NDArray[np.uint8]) -> tuple[str, ...]:
    """Decode tokens [F, L] to sequences without padding; ambiguous letters are N, masks '?'."""
    letters = np.array(VOCABULARY)
    return tuple("".join(letters[row[row != PAD]]) for row in codes)


def hash_sequences(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Hash each sequence without its padding, int64 [F].

    >>> short, long = hash_sequences(np.array([[1, 2, 0], [1, 2, 3]], dtype=np.uint8))
    >>> bool(short == hash_sequences(np.array([[1, 2]], dtype=np.uint8))[0]), bool(short == long)
    (True, False)
    """
    return np.array([hash_of(row[row != PAD].tobytes()) for row in codes], dtype=np.int64)


def hash_of(content: bytes) -> int:
    """Return a signed 64-bit hash; Python's own hash differs between processes."""
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
