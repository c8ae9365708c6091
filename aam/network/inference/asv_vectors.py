"""Folder of ASV vectors: sequences that an encoder has encoded before, for later commands.

    FOLDER/ENCODER/SEGMENT/hashes.npy     int64 [n], ascending, hash of each sequence
                           vectors.npy    float32 or float16 [n, D]
                           segment.json   format, written last

ENCODER is a digest of the weights that determine the vectors, so a folder serves any number of
models. Each command adds one segment under a new name. Segments never change, so processes and
users can add to one folder at the same time without locks. The probability that any two of ten
million sequences have the same hash is 3e-6.

A command that stores float16 rounds all vectors, the encoded and the stored ones, so that its
results do not depend on the content of the folder; a command that stores float32 reads no float16.
Shape suffixes: F ASVs of a study, D width of a vector.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.console import info
from aam.contract.errors import DataError, reason_of
from aam.contract.files import dump_json
from aam.contract.options.groups import AsvVectorOptions
from aam.contract.records import read_json
from aam.data.store import write_npy
from aam.memory import shown_size
from aam.network.model.encoders import NucleotideEncoder
from aam.serialization.folders import atomic_folder, remove_abandoned

FORMAT = 1  # version of a segment; other versions are refused

_SEGMENT = "segment.json"
_REMEDY = "remove this folder; its vectors are encoded again"

Hashes = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]


@dataclass(frozen=True)
class AsvVectors:
    """Stored ASV vectors of one encoder."""

    folder: Path  # folder of the encoder
    dtype: torch.dtype  # type of the vectors that are added, to which stored vectors are rounded
    # hashes [n] and vectors [n, D] of each segment, memory-mapped
    segments: tuple[tuple[Hashes, Vectors], ...]

    def fill(self, hashes_F: Hashes, vectors_FD: Tensor) -> npt.NDArray[np.bool_]:
        """Copy the stored vectors to their rows of `vectors_FD`; return which rows are filled."""
        filled_F = np.zeros(len(hashes_F), dtype=np.bool_)
        for hashes, vectors in self.segments:
            rows = np.flatnonzero(~filled_F)
            # The index of a hash above all hashes of the segment is the length of the segment.
            indices = np.searchsorted(hashes, hashes_F[rows]).clip(max=len(hashes) - 1)
            same = hashes[indices] == hashes_F[rows]
            copied = torch.from_numpy(vectors[indices[same]]).to(self.dtype)
            vectors_FD[torch.from_numpy(rows[same]).to(vectors_FD.device)] = copied.to(vectors_FD)
            filled_F[rows[same]] = True
        return filled_F

    def add(self, hashes_F: Hashes, vectors_FD: Tensor) -> Tensor:
        """Write a segment with the vectors of new sequences; return them rounded as stored."""
        unique, rows = np.unique(hashes_F, return_index=True)
        rounded_FD = vectors_FD.to(self.dtype)
        # The largest number of float16 is 65,504: larger numbers become infinite.
        if not bool(rounded_FD[vectors_FD.isfinite()].isfinite().all()):
            evidence = f"the largest value is {float(vectors_FD.abs().max()):g}"
            raise DataError("ASV vectors exceed float16", evidence, "store float32")
        vectors = rounded_FD[torch.from_numpy(rows).to(vectors_FD.device)].cpu().numpy()
        remove_abandoned(self.folder)
        # A random name, since other processes may add segments at the same time without a lock.
        with atomic_folder(self.folder / uuid.uuid4().hex, overwrite=False) as segment:
            write_npy(segment / "hashes.npy", unique)
            write_npy(segment / "vectors.npy", vectors)
            (segment / _SEGMENT).write_text(dump_json({"format": FORMAT}) + "\n", encoding="utf-8")
        return rounded_FD.to(vectors_FD)

    def show(self, stored: int, asvs: int) -> None:
        """Print how many ASVs of a study were stored, and the size of the folder."""
        number = sum(len(hashes) for hashes, _ in self.segments)
        size = sum(vectors.nbytes for _, vectors in self.segments)
        info(
            f"ASV vectors: {stored} of {asvs} ({stored / max(asvs, 1):.0%}) were encoded before; "
            f"'{self.folder}' has {number} ({shown_size(size)})."
        )


def open_vectors(options: AsvVectorOptions, encoder: NucleotideEncoder) -> AsvVectors | None:
    """Open the stored vectors of an encoder, if any; None without a folder."""
    if options.asv_vectors_dir is None:
        return None
    folder = options.asv_vectors_dir / encoder.digest
    dtype = torch.float16 if options.asv_vectors_dtype == "float16" else torch.float32
    width = encoder.position.shape[1]
    segments = []
    for path in sorted(folder.glob(f"*/{_SEGMENT}")):
        if path.parent.name.startswith("."):
            continue  # another process is writing this segment
        version = read_json(path, dict[str, Any], "segment of ASV vectors", _REMEDY).get("format")
        if version != FORMAT:
            evidence = f"'{path}' has format {version}, this version reads {FORMAT}"
            raise DataError("ASV vectors of another version", evidence, "use another folder")
        try:
            # Mapping compares the size of each file with its header, so it detects missing values.
            hashes, vectors = (
                np.asarray(np.load(path.with_name(name), mmap_mode="r", allow_pickle=False))
                for name in ("hashes.npy", "vectors.npy")
            )
            types = hashes.dtype == np.int64 and vectors.dtype in (np.float32, np.float16)
            if vectors.shape != (len(hashes), width) or not types:
                shape = f"{vectors.dtype} vectors {vectors.shape}"
                raise ValueError(f"it has {shape} for {len(hashes)} hashes")
        except (OSError, ValueError, EOFError) as error:
            evidence = f"'{path.parent}', {reason_of(error)}"
            raise DataError("A segment of ASV vectors is damaged", evidence, _REMEDY) from error
        # With vectors that were rounded to float16, float32 results would depend on the folder.
        if len(hashes) and (dtype == torch.float16 or vectors.dtype == np.float32):
            segments.append((hashes, vectors))
    return AsvVectors(folder, dtype, tuple(segments))
