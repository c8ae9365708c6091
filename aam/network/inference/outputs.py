"""Application of trained networks: ASV vectors, embeddings, outputs of the target, ONNX.

`aam export` writes ASV encoders as ONNX files, checked by ONNX Runtime. A file maps tokens, uint8
[U, L], to vectors, float32 [U, D], of U ASVs. Tokens are the codes of `aam.data.sequences`, padded
or cut on the right to L nucleotides.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor, nn

from aam.console import info, track, warn
from aam.contract import run_files
from aam.contract.errors import DataError, Unavailable, first_few, reason_of
from aam.contract.files import atomic_write, dump_json, refuse_existing
from aam.contract.installation import not_installed
from aam.contract.options.commands.use import Embed, Export
from aam.contract.options.groups import AsvVectorOptions, DeviceOptions
from aam.contract.records import read_json
from aam.contract.version import __version__
from aam.data.distances import principal_coordinates, write_ordination
from aam.data.formats.text import quoting
from aam.data.metadata import ID_HEADER, read_metadata
from aam.data.sequences import hash_sequences
from aam.data.store import write_npy
from aam.data.study import Study, load_study
from aam.members.model_file import read
from aam.members.output_tables import NO_VECTORS, InferenceSettings, rank_share, require_finite
from aam.memory import shown_size
from aam.network.batches import FIXED_DRAW, Batch, BatchPlan, FixedBatches
from aam.network.inference.stored_networks import ModelConfig, StoredNetwork, Target, read_networks
from aam.network.model.covariate_embedding import CovariateInputs
from aam.network.model.encoders import NucleotideEncoder
from aam.network.model.network import PROFILE_HIDDEN, Encoder, Predictor
from aam.network.numerics.backends import BackendPolicy
from aam.network.numerics.device import choose_device, print_device
from aam.nucleotide_codes import PAD, VOCABULARY
from aam.report.figures import ordination_figure
from aam.report.run import as_colour
from aam.serialization.folders import atomic_folder, remove_abandoned

FORMAT = 1  # version of a segment; other versions are refused

_SEGMENT = "segment.json"
_REMEDY = "remove this folder; its vectors are encoded again"

Hashes = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32] | npt.NDArray[np.float16]


@dataclass(frozen=True)
class AsvVectors:
    """Folder of the ASV vectors that an encoder has computed before, for later commands.

        FOLDER/ENCODER/SEGMENT/hashes.npy     int64 [n], ascending, hash of each sequence
                               vectors.npy    float32 or float16 [n, D]
                               segment.json   format, written last

    ENCODER is a digest of the weights that determine the vectors, so a folder serves any number of
    models. Each command adds one segment under a new name. Segments never change, so processes and
    users can add to one folder at the same time without locks. The probability that any two of ten
    million sequences have the same hash is 3e-6.

    A command that stores float16 rounds all vectors, the encoded and the stored ones, so that its
    results do not depend on the content of the folder; a command that stores float32 reads no
    float16.
    """

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


CHUNK = 512  # sequences encoded at a time


def encode_asvs(
    encoder: Encoder,  # it is moved to `device` and set to evaluation mode
    study: Study,
    device: torch.device,
    vectors: AsvVectorOptions = NO_VECTORS,
) -> Tensor:
    """Encode every ASV of the study; on a CPU a vector does not depend on the other sequences."""
    encoder.to(device).eval()
    tokens_FL = study.tokens_FL
    vectors_FD = torch.empty(len(tokens_FL), encoder.shape.embedding_dim, device=device)
    new_F = np.ones(len(tokens_FL), dtype=np.bool_)
    stored = open_vectors(vectors, encoder.nucleotides)
    if stored is not None:
        hashes_F = hash_sequences(tokens_FL)
        new_F = ~stored.fill(hashes_F, vectors_FD)
        stored.show(int((~new_F).sum()), len(new_F))
    # Sequences that need an attention mask are in separate chunks, and all chunks have one shape:
    # masks and shapes determine the kernel, and the sums of kernels differ by rounding.
    short_F = tokens_FL[:, encoder.nucleotides.last_patch(tokens_FL.shape[1])] == PAD
    chunks = [
        group[start : start + CHUNK]
        for group in (np.flatnonzero(new_F & ~short_F), np.flatnonzero(new_F & short_F))
        for start in range(0, len(group), CHUNK)
    ]
    # The last chunk of a group is filled up with sequences of the same chunk.
    encoded = encoder.encode_all(torch.from_numpy(tokens_FL[np.resize(c, CHUNK)]) for c in chunks)
    steps = track(encoded, "Encoding ASVs", len(chunks), "chunks")
    for chunk, vectors_KD in zip(chunks, steps, strict=True):
        vectors_FD[torch.from_numpy(chunk).to(device)] = vectors_KD[: len(chunk)]
    if stored is not None and new_F.any():
        rows = np.flatnonzero(new_F)
        on_device = torch.from_numpy(rows).to(device)
        vectors_FD[on_device] = stored.add(hashes_F[rows], vectors_FD[on_device])
    return vectors_FD


def apply_network(
    network: Encoder | Predictor,  # it is moved to `device` and set to evaluation mode
    study: Study,
    plan: BatchPlan,  # rarefaction and largest number of ASVs of a sample
    rows: npt.NDArray[np.int64],  # int64 [N], rows of the samples in the study
    batch_size: int,  # samples at a time; outputs depend on it by rounding alone
    device: torch.device,
    asv_vectors_FD: Tensor,
    reads_pass: int = 0,  # number of the rarefaction; validation uses 0
    covariates: CovariateInputs | None = None,
    terms_FW: Tensor | None = None,  # `profile_terms` of the ASVs, if already computed
    title: str = "Reading samples",  # label of the progress bar; "" for no progress bar
) -> tuple[npt.NDArray[np.float32], Tensor | None]:
    """Return embeddings [N, D] and outputs [N, C] of samples, float32; no outputs of an encoder."""
    batches = FixedBatches(study, plan, rows, batch_size, FIXED_DRAW + reads_pass)
    shape = network.encoder.shape
    # Allocated at once: small tensors between the large ones of each batch would fragment the heap.
    embeddings_ND = torch.empty(len(rows), shape.embedding_dim)
    outputs_NC = None if isinstance(network, Encoder) else torch.empty(len(rows), shape.outputs)
    applied = _applied(network, study, batches, device, asv_vectors_FD, covariates, terms_FW, title)
    for k, (embedding_BD, outputs_BC) in enumerate(applied):
        samples = slice(k * batch_size, k * batch_size + len(embedding_BD))
        embeddings_ND[samples] = embedding_BD
        if outputs_NC is not None and outputs_BC is not None:
            outputs_NC[samples] = outputs_BC
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    require_finite("embeddings", ids, embeddings_ND.numpy())
    if outputs_NC is not None:
        require_finite("predictions", ids, outputs_NC.numpy())
    return embeddings_ND.numpy(), outputs_NC


@torch.no_grad()
def _applied(
    network: Encoder | Predictor,
    study: Study,
    batches: FixedBatches,
    device: torch.device,
    asv_vectors_FD: Tensor,
    covariates: CovariateInputs | None = None,
    terms_FW: Tensor | None = None,
    title: str = "Reading samples",
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the embeddings [B, D] and outputs [B, C] of each batch, in float32 on the CPU."""
    network.to(device).eval()
    if terms_FW is None:
        terms_FW = profile_terms(network, study.tokens_FL, device)
    steps = range(len(batches))
    for k in track(steps, title, len(batches), "batches") if title else steps:
        batch = batches[k].to(device)
        embedding_BD, outputs_BC = apply_to_batch(
            network, batch, asv_vectors_FD, terms_FW, covariates
        )
        yield embedding_BD.float().cpu(), None if outputs_BC is None else outputs_BC.float().cpu()


def apply_to_batch(
    network: Encoder | Predictor,
    batch: Batch,
    asv_vectors_FD: Tensor,
    terms_FW: Tensor | None,
    covariates: CovariateInputs | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return embeddings [B, D] and outputs [B, C] of a batch; no outputs of an encoder."""
    embedding_BD, members_BSD = network.encoder.samples(
        asv_vectors_FD[batch.asvs_U], batch.slots_BS, batch.counts_BS, batch.attend_BS
    )
    if isinstance(network, Encoder):
        return embedding_BD, None
    profile_BW = None
    if terms_FW is not None:
        slots_BS = batch.asvs_U[batch.slots_BS]
        profile_BW = network.profile_hidden(terms_FW, slots_BS, batch.counts_BS)
    covariates_B = None if covariates is None else covariates.take(batch.rows_B)
    outputs_XBC = network.heads(
        embedding_BD, members_BSD, batch.attend_BS, profile_BW, covariates_B
    )
    return embedding_BD, outputs_XBC.mean(dim=0)


def profile_terms(
    network: Encoder | Predictor, tokens_FL: npt.NDArray[np.uint8], device: torch.device
) -> Tensor | None:
    """Return `Predictor.profile_terms` [F, W] of every sequence; None without a profile."""
    if isinstance(network, Encoder) or network.profile is None:
        return None
    network.to(device).eval()
    terms_FW = torch.empty(len(tokens_FL), PROFILE_HIDDEN, device=device)
    for start in range(0, len(tokens_FL), CHUNK):
        # The last chunk is filled up, so that all matrix products have one shape.
        terms_KW = terms_FW[start : start + CHUNK]
        tokens_KL = np.resize(tokens_FL[start : start + CHUNK], (CHUNK, tokens_FL.shape[1]))
        terms_KW[:] = network.profile_terms(torch.from_numpy(tokens_KL).to(device))[: len(terms_KW)]
    return terms_FW


@dataclass(frozen=True)
class LoadedNetwork:
    """A stored network that was built on a device."""

    stored: StoredNetwork  # configuration and weights
    network: Encoder | Predictor  # module with these weights, in any mode
    device: torch.device  # device that computes
    attention: dict[str, Any]  # entry of the run record about the attention backends

    @property
    def config(self) -> ModelConfig:
        """Configuration of the network."""
        return self.stored.config

    @property
    def target(self) -> Target:
        """Target of a trained network, with the transform of its fold."""
        assert self.config.target is not None  # None after pretraining
        return self.config.target

    def warn_of_shallow(self, study: Study) -> None:
        """Warn of samples that have fewer reads than the rarefaction depth of the network."""
        depth = self.config.plan.rarefy_depth
        if below := study.shallow(depth):
            warn(
                f"Samples with fewer than the model's {depth} reads are read whole: "
                f"{first_few(below)}."
            )

    def embed(self, study: Study, settings: InferenceSettings) -> npt.NDArray[np.float32]:
        """Return the embedding of every sample, float32 [N, D], by the encoder alone."""
        encoder, rows = self.network.encoder, np.arange(len(study.table.sample_ids))
        vectors_FD = encode_asvs(encoder, study, self.device, settings.vectors)
        plan, size = self.config.plan.for_inference, settings.batch_size
        return apply_network(encoder, study, plan, rows, size, self.device, vectors_FD)[0]

    def write_embeddings(
        self, path: Path, study: Study, batch_size: int, asv_vectors_FD: Tensor
    ) -> None:
        """Write the embedding of every sample of the study, batch by batch."""
        ids = study.table.sample_ids
        rows, plan = np.arange(len(ids)), self.config.plan.for_inference
        batches = FixedBatches(study, plan, rows, batch_size)
        applied = _applied(self.network.encoder, study, batches, self.device, asv_vectors_FD)
        write_embeddings(path, ids, (embeddings.numpy() for embeddings, _ in applied))


def write_embeddings(
    path: Path, sample_ids: Sequence[str], blocks: Iterable[npt.NDArray[np.float32]]
) -> None:
    """Write the table sample-id, e0, e1, ... of the samples, in their order."""
    ids = iter(sample_ids)
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        for number, block_ND in enumerate(blocks):
            names = list(itertools.islice(ids, len(block_ND)))
            require_finite("embeddings", names, block_ND)
            table = pd.DataFrame(block_ND, columns=[f"e{i}" for i in range(block_ND.shape[1])])
            table.insert(0, ID_HEADER, names)
            quoted = quoting(names)
            table.to_csv(stream, sep="\t", index=False, header=number == 0, quoting=quoted)


def build_networks(
    stored: Sequence[StoredNetwork], device: DeviceOptions, policy: BackendPolicy | None = None
) -> list[LoadedNetwork]:
    """Build the networks of a model, with attention backends that compute correctly."""
    first = _output_signature(stored[0].config)
    if any(_output_signature(network.config) != first for network in stored):
        evidence = f"{len(stored)} networks have different shapes or targets"
        raise DataError("The networks come from different runs", evidence, "train again")
    chosen_device = choose_device(device)
    policy = policy or BackendPolicy()
    shape = stored[0].config.shape
    backends, record = policy.choose_attention(device, chosen_device, shape)
    return [
        LoadedNetwork(network, network.build(backends), chosen_device, record) for network in stored
    ]


def _output_signature(config: ModelConfig) -> tuple[object, ...]:
    """Return what networks must have in common for a mean of their predictions."""
    target = config.target
    # Categories may differ: a category is unknown in a fold with too few training samples of it.
    columns = config.covariates and config.covariates.columns
    shape = dataclasses.replace(config.shape, covariates=None)
    outputs = target and (target.column, target.classes, target.quantiles, target.levels)
    return shape, columns, outputs


EMBEDDING_FILES = ("embeddings.tsv", "ordination.txt", "pcoa.png")
AXES = 10


def run_embed(options: Embed) -> dict[str, object]:
    """Run `aam embed` with the network of the first fold; return facts for the run record."""
    folder = options.output_dir
    for name in EMBEDDING_FILES:
        refuse_existing(folder / name, options.overwrite)
    with rank_share(options.scale, options.device) as share:
        if share.ranks.world_size == 1:  # a process group prints the device itself
            print_device(choose_device(options.device))
        # One network, because embeddings of different networks have no common axes.
        network = build_networks(read_networks(options.model)[:1], options.device)[0]
        study = load_study(options.input, max_bp=network.config.shape.max_bp)
        network.warn_of_shallow(study)
        settings = InferenceSettings(options.batch_size, vectors=options.vectors)
        shard = share.take(study, options.batch_size)
        embeddings_ND = np.concatenate(share.gather(network.embed(shard, settings)))
    if not share.ranks.is_main:
        return {}
    ids = study.table.sample_ids
    coords, explained = principal_coordinates(embeddings_ND, AXES)
    colour = None
    if options.metadata is not None and options.color_by is not None:
        metadata = read_metadata(options.metadata)
        texts = metadata.values(options.color_by, ids).tolist()
        is_category = options.color_by in metadata.listed(options.categories)
        colour = as_colour(options.color_by, texts, is_category)
    write_embeddings(folder / "embeddings.tsv", ids, [embeddings_ND])
    try:
        write_ordination(folder / "ordination.txt", ids, coords, explained)
    except DataError as error:  # the format cannot hold these ids
        info(str(error))
    figure = ordination_figure(coords, explained.tolist(), "Samples by their embedding", colour)
    with atomic_write(folder / "pcoa.png") as temporary:
        figure.savefig(temporary, dpi=150)
    for name in EMBEDDING_FILES:
        run_files.add(folder, name)
    info(f"{len(ids)} samples: {', '.join(EMBEDDING_FILES)} in {folder}")
    return {"attention": network.attention}


TOLERANCE = 1e-4
"""Largest difference between ONNX Runtime and PyTorch, relative to the largest output."""


class AsvEncoder(nn.Module):
    """Nucleotide encoder that returns the vectors alone."""

    def __init__(self, nucleotides: NucleotideEncoder) -> None:
        super().__init__()
        self.nucleotides = nucleotides

    def forward(self, tokens_UL: Tensor) -> Tensor:
        """Map [U, L] to [U, D]."""
        vectors_UD: Tensor = self.nucleotides(tokens_UL, True)[0]
        return vectors_UD


def export(encoder: NucleotideEncoder, length: int, path: Path) -> float:
    """Write an ASV encoder as ONNX, run it, and return its largest relative difference."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - PyTorch's exporter needs it
    except ImportError as error:
        raise not_installed("The export needs onnxruntime and onnxscript", error, "onnx") from error
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def example(asvs: int) -> Tensor:
        rng = torch.Generator().manual_seed(asvs)
        tokens_UL = torch.randint(1, 5, (asvs, length), generator=rng, dtype=torch.uint8)
        tokens_UL[asvs // 2 :, length // 2 :] = 0  # shorter sequences
        return tokens_UL

    module = AsvEncoder(encoder).eval()
    # The check has another number of ASVs than the export, so that it fails if the exporter took
    # this number for a constant. The number needs a maximum: PyTorch 2.7 excludes the largest
    # integer.
    shapes = ({0: torch.export.Dim("asvs", max=2**31 - 1)},)
    tokens_UL = example(17)
    with torch.no_grad():
        graph = torch.export.export(module, (example(5),), dynamic_shapes=shapes)
        program = torch.onnx.export(
            graph, dynamo=True, input_names=["tokens"], output_names=["vectors"], verbose=False
        )
        assert program is not None
        expected_UD = module(tokens_UL).numpy()
    facts = {"length": length, "aam": __version__, "letters": "".join(VOCABULARY)}
    program.model.metadata_props["aam"] = json.dumps(facts)
    with atomic_write(path) as temporary:
        # The check reads the temporary file, so a file that computes wrong values is never renamed.
        program.save(temporary)
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(temporary), quiet)
        computed_UD = session.run(None, {"tokens": tokens_UL.numpy()})[0]
        difference = float(np.abs(computed_UD - expected_UD).max() / np.abs(expected_UD).max())
        # `not <=` also refuses NaN.
        if not difference <= TOLERANCE:
            raise Unavailable(
                "ONNX Runtime and PyTorch compute different values",
                f"'{path.name}', difference {difference:.2g} of the largest output",
                "use other versions of onnxruntime and onnxscript",
            )
    return difference


def run_export(options: Export) -> dict[str, object]:
    """Run `aam export`: write an ONNX file for each network of the model."""
    # ONNX Runtime is compared with PyTorch on the CPU.
    folder, model = options.output_dir, read(options.model, DeviceOptions(device="cpu"))
    encoders = [encoder for member in model.models.values() for encoder in member.asv_encoders()]
    if not encoders:
        evidence = f"'{options.model}' has {', '.join(model.models)}"
        remedy = "export a model with the member transformer, or a pretrained encoder"
        raise DataError("The model has no network to export", evidence, remedy)
    number = len(encoders)
    names = [f"asv_encoder-fold-{fold}" for fold in range(1, number + 1)]
    paths = [folder / f"{name}.onnx" for name in (names if number > 1 else ["asv_encoder"])]
    for path in paths:
        refuse_existing(path, options.overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    differences: dict[str, object] = {}
    for path, encoder in zip(paths, encoders, strict=True):
        differences[path.name] = difference = export(encoder, model.max_bp, path)
        info(f"{path}: ONNX Runtime differs from PyTorch by {difference:.1g} of the largest output")
    return {"differences": differences}
