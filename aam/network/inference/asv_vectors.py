"""Folder of ASV vectors: sequences that an encoder has encoded once, for later commands.

    FOLDER/ENCODER/SEGMENT/hashes.npy     int64 [n], ascending, hash of each sequence
                           vectors.npy    float32 or float16 [n, D]
                           segment.json   format, written last

ENCODER is a digest of the weights that make the vectors, so a folder serves any number of models.
Each command adds one segment under a new name: segments never change, and processes and users add
to one folder at the same time without locks. Two of ten million sequences have one hash with a
probability of 3e-6.

A command that stores float16 rounds the vectors that it encodes and those that it reads, so that
its results do not depend on what the folder holds; one that stores float32 reads no float16.
Shape suffixes: F ASVs of a study, D width of a vector.
"""

from __future__ import annotations

import hashlib
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

FORMAT = 1  # version of a segment; one of another version is refused

_SEGMENT = "segment.json"
_REMEDY = "remove this folder; its vectors are encoded again"

Hashes = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]


@dataclass(frozen=True)
class AsvVectors:
    """Vectors of one encoder in a folder."""

    folder: Path  # folder of the encoder
    dtype: torch.dtype  # numbers of the vectors that are added, and to which known ones are rounded
    # hashes [n] and vectors [n, D] of each segment, memory-mapped
    segments: tuple[tuple[Hashes, Vectors], ...]

    def fill(self, hashes_F: Hashes, vectors_FD: Tensor) -> npt.NDArray[np.bool_]:
        """Copy the known vectors to their rows of `vectors_FD`."""
        known_F = np.zeros(len(hashes_F), dtype=np.bool_)
        for hashes, vectors in self.segments:
            rows = np.flatnonzero(~known_F)
            # A hash above all of the segment has the place behind the last one.
            places = np.searchsorted(hashes, hashes_F[rows]).clip(max=len(hashes) - 1)
            same = hashes[places] == hashes_F[rows]
            copied = torch.from_numpy(vectors[places[same]]).to(self.dtype)
            vectors_FD[torch.from_numpy(rows[same]).to(vectors_FD.device)] = copied.to(vectors_FD)
            known_F[rows[same]] = True
        return known_F

    def add(self, hashes_F: Hashes, vectors_FD: Tensor) -> Tensor:
        """Write a segment with the vectors of further sequences; return them as they are read."""
        unique, rows = np.unique(hashes_F, return_index=True)
        rounded_FD = vectors_FD.to(self.dtype)
        # float16 ends at 65,504: a larger number becomes infinite.
        if not bool(rounded_FD[vectors_FD.isfinite()].isfinite().all()):
            evidence = f"the largest value is {float(vectors_FD.abs().max()):g}"
            raise DataError("ASV vectors exceed float16", evidence, "store float32")
        vectors = rounded_FD[torch.from_numpy(rows).to(vectors_FD.device)].cpu().numpy()
        remove_abandoned(self.folder)
        # A random name, since other processes add segments at the same time without a lock.
        with atomic_folder(self.folder / uuid.uuid4().hex, overwrite=False) as segment:
            write_npy(segment / "hashes.npy", unique)
            write_npy(segment / "vectors.npy", vectors)
            (segment / _SEGMENT).write_text(dump_json({"format": FORMAT}) + "\n", encoding="utf-8")
        return rounded_FD.to(vectors_FD)

    def show(self, known: int, asvs: int) -> None:
        """Print how many of the ASVs of a study were known, and the size of the folder."""
        number = sum(len(hashes) for hashes, _ in self.segments)
        size = sum(vectors.nbytes for _, vectors in self.segments)
        info(
            f"ASV vectors: {known} of {asvs} ({known / max(asvs, 1):.0%}) were encoded before, of "
            f"{number} ({shown_size(size)}) in '{self.folder}'."
        )


def open_vectors(options: AsvVectorOptions, encoder: NucleotideEncoder) -> AsvVectors | None:
    """Open the vectors of an encoder in a folder, none if it is new; None without a folder."""
    if options.asv_vectors_dir is None:
        return None
    folder = options.asv_vectors_dir / digest(encoder)
    dtype = torch.float16 if options.asv_vectors_dtype == "float16" else torch.float32
    width = encoder.position.shape[1]
    segments = []
    for path in sorted(folder.glob(f"*/{_SEGMENT}")):
        if path.parent.name.startswith("."):
            continue  # A segment that another process writes.
        version = read_json(path, dict[str, Any], "segment of ASV vectors", _REMEDY).get("format")
        if version != FORMAT:
            evidence = f"'{path}' has format {version}, this version reads {FORMAT}"
            raise DataError("ASV vectors of another version", evidence, "use another folder")
        try:
            # Mapping compares the size of each file with its header, and so finds missing values.
            hashes, vectors = (
                np.asarray(np.load(path.with_name(name), mmap_mode="r", allow_pickle=False))
                for name in ("hashes.npy", "vectors.npy")
            )
            types = hashes.dtype == np.int64 and vectors.dtype in (np.float32, np.float16)
            if vectors.shape != (len(hashes), width) or not types:
                shape = f"{vectors.dtype} vectors {vectors.shape}"
                raise ValueError(f"it has {shape} of {len(hashes)} hashes")
        except (OSError, ValueError, EOFError) as error:
            evidence = f"'{path.parent}', {reason_of(error)}"
            raise DataError("A segment of ASV vectors is damaged", evidence, _REMEDY) from error
        # Vectors that were rounded to float16 would make results of float32 depend on the folder.
        if len(hashes) and (dtype == torch.float16 or vectors.dtype == np.float32):
            segments.append((hashes, vectors))
    return AsvVectors(folder, dtype, tuple(segments))


def digest(encoder: NucleotideEncoder) -> str:
    """Return a digest of the weights that determine the vector of a sequence."""
    digest = hashlib.sha256(f"patch {encoder.patch}".encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        # The head restores masked nucleotides and has no part in the vectors.
        if not name.startswith("head."):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
