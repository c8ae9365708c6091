"""Growth of memory, time and disk with the number of samples, from a simulated large collection.

    python benchmarks/collection.py make FOLDER --study table.biom [--tree tree.nwk] [--samples N]
    python benchmarks/collection.py measure FOLDER --model RUN

`make` writes table.biom, metadata.tsv and, with the tree of the study, tree.nwk into FOLDER, block
by block. A template is a composition of `--richness` ASVs: the reads of real samples of the study,
drawn until they have enough ASVs. Every ASV is a real sequence, or a variant of one with a few
substitutions, which stands in the tree beside it. A sample is a template with log-normal noise on
its abundances, sequenced to a random depth; it has all ASVs of its template.

`measure` runs `aam prepare`, `aam embed` and `aam predict`, each in a process whose private memory
is limited to 4 GiB, and prints their CPU time, peak of resident memory, and the bytes and files on
disk.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

SEED = 5
BLOCK = 4096
"""Samples that are simulated at a time."""
CHUNK = 1 << 16
"""Values of a chunk of the HDF5 file."""
NOISE = 0.5
"""Standard deviation of the log abundance of an ASV between samples of one template."""
MEDIAN_READS = 10_000
MEMORY_LIMIT = 4 << 30
BATCH_SIZE = 32


@dataclass(frozen=True)
class Templates:
    """Compositions of T templates of S ASVs out of F.

    Attributes:
        sequences: of the F ASVs.
        sources_F: index of the real ASV that each one is a variant of.
        asvs_TS: int32, ascending within a template.
        proportions_TS: float64, of the reads; rows sum to 1.
    """

    sequences: list[str]
    sources_F: NDArray[np.int64]
    asvs_TS: NDArray[np.int32]
    proportions_TS: NDArray[np.float64]


def make(options: argparse.Namespace) -> None:
    """Write the files of a collection."""
    from aam.data.sequences import sequences_of
    from aam.data.table import read_table

    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    table = read_table(options.study, drop_empty_samples=True)
    real = sequences_of(table.feature_ids, None)
    rng = np.random.default_rng(SEED)
    templates = draw_templates(table.counts, real, options, rng)
    if options.tree is not None:
        tree = with_variants(options.tree.read_text(), real, templates)
        (folder / "tree.nwk").write_text(tree)
    write_samples(folder, templates, options.samples, rng)
    entries = options.samples * options.richness
    print(f"{options.samples} samples, {len(templates.sequences)} ASVs, {entries} counts: {folder}")


def draw_templates(
    counts: Any, real: tuple[str, ...], options: argparse.Namespace, rng: np.random.Generator
) -> Templates:
    """Draw compositions from the real counts [n, f], and the variants of the f real ASVs."""
    count, richness = options.templates, options.richness
    sources_TS = np.empty((count, richness), dtype=np.int64)
    proportions_TS = np.empty((count, richness))
    for template in range(count):
        reads: dict[int, int] = {}
        while len(reads) < richness:
            row = int(rng.integers(counts.shape[0]))
            span = slice(counts.indptr[row], counts.indptr[row + 1])
            for asv, value in zip(counts.indices[span], counts.data[span], strict=True):
                reads.setdefault(int(asv), int(value))
        chosen = np.array(list(reads.items())[:richness])
        sources_TS[template] = chosen[:, 0]
        proportions_TS[template] = chosen[:, 1] / chosen[:, 1].sum()
    # Variants in proportion to the templates that contain an ASV, so that each of them occurs.
    occurrences = np.bincount(sources_TS.ravel(), minlength=len(real))
    variants = np.ceil(occurrences * options.asvs / occurrences.sum()).astype(np.int64)
    firsts, seen = np.cumsum(variants) - variants, np.zeros_like(variants)
    asvs_TS = np.empty_like(sources_TS)
    for template, sources_S in enumerate(sources_TS):
        turn_S = seen[sources_S] % variants[sources_S]
        asvs_TS[template] = firsts[sources_S] + turn_S
        seen[sources_S] += 1
    ascending = np.argsort(asvs_TS, axis=1)
    sources_F = np.repeat(np.arange(len(real)), variants)
    return Templates(
        mutate(real, sources_F, rng),
        sources_F,
        np.take_along_axis(asvs_TS, ascending, axis=1).astype(np.int32),
        np.take_along_axis(proportions_TS, ascending, axis=1),
    )


def mutate(
    real: tuple[str, ...], sources_F: NDArray[np.int64], rng: np.random.Generator
) -> list[str]:
    """Return the real sequence for the first ASV of each source, distinct variants for others."""
    seen, found = set(real), []
    for asv, source in enumerate(sources_F.tolist()):
        variant = real[source]
        while asv and source == sources_F[asv - 1] and variant in seen:
            letters = list(variant)
            for _ in range(1 + rng.poisson(2)):
                letters[int(rng.integers(len(letters)))] = "ACGT"[int(rng.integers(4))]
            variant = "".join(letters)
        seen.add(variant)
        found.append(variant)
    return found


def with_variants(tree: str, real: tuple[str, ...], templates: Templates) -> str:
    """Replace each tip of a Newick text that has variants by a polytomy of them."""
    variants: dict[str, list[str]] = {}
    for sequence, source in zip(templates.sequences, templates.sources_F.tolist(), strict=True):
        variants.setdefault(real[source], []).append(sequence)

    def polytomy(tip: re.Match[str]) -> str:
        names = variants.get(tip[0], [])
        if len(names) < 2:
            return names[0] if names else f"unread_{tip[0]}"  # A variant may have its sequence.
        # Three substitutions on average (see `mutate`).
        return f"({','.join(f'{name}:{3 / len(name):.4f}' for name in names)})"

    return re.sub(r"[ACGTN]{20,}", polytomy, tree)


def write_samples(
    folder: Path, templates: Templates, samples: int, rng: np.random.Generator
) -> None:
    """Write table.biom and metadata.tsv, which has the Shannon diversity of each template."""
    import h5py

    count, richness = templates.asvs_TS.shape
    proportions = templates.proportions_TS
    shannon = -(proportions * np.log(proportions)).sum(axis=1)
    ids = np.char.mod("S%07d", np.arange(samples))
    text = h5py.string_dtype()
    packed: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "chunks": (CHUNK,)}
    entries = samples * richness
    if entries < CHUNK:
        packed["chunks"] = (entries,)
    with (
        h5py.File(folder / "table.biom", "w") as file,
        (folder / "metadata.tsv").open("w", encoding="utf-8") as metadata,
    ):
        file.attrs["format-version"] = (2, 1)
        file.attrs["shape"] = (len(templates.sequences), samples)
        file.create_dataset("observation/ids", data=templates.sequences, dtype=text)
        file.create_dataset("sample/ids", data=ids.tolist(), dtype=text)
        group = file.create_group("sample/matrix")
        group["indptr"] = np.arange(samples + 1) * richness
        indices = group.create_dataset("indices", (entries,), np.int32, **packed)
        data = group.create_dataset("data", (entries,), np.float64, **packed)
        metadata.write("sample-id\ttemplate\tdiversity\n")
        for start in range(0, samples, BLOCK):
            rows = np.arange(start, min(start + BLOCK, samples))
            drawn = rng.integers(count, size=len(rows))
            noisy = proportions[drawn] * rng.lognormal(0, NOISE, (len(rows), richness))
            reads = MEDIAN_READS * rng.lognormal(0, NOISE, (len(rows), 1))
            expected = noisy / noisy.sum(axis=1, keepdims=True) * reads
            block = slice(rows[0] * richness, (rows[-1] + 1) * richness)
            data[block] = np.maximum(rng.poisson(expected), 1).ravel()
            indices[block] = templates.asvs_TS[drawn].ravel()
            metadata.writelines(
                f"{ids[row]}\tT{template}\t{shannon[template]:.4f}\n"
                for row, template in zip(rows.tolist(), drawn.tolist(), strict=True)
            )


@dataclass(frozen=True)
class Usage:
    """Use of one process.

    Attributes:
        cpu: seconds of user and system time.
        seconds: from start to end.
        peak: bytes of resident memory, with the pages of mapped files.
    """

    cpu: float
    seconds: float
    peak: int


def measure(options: argparse.Namespace) -> None:
    """Run the commands and print what each one used."""
    folder: Path = options.folder
    store, vectors = folder / "store", folder / "vectors"
    log = (folder / "measure.log").open("a", encoding="utf-8")
    rows = Table(title=str(folder.name))
    for name in ("command", "CPU s", "seconds", "peak MiB", "MB on disk", "files"):
        rows.add_column(name, justify="left" if name == "command" else "right")
    console = Console(width=110)

    def step(name: str, output: Path, *argv: str) -> None:
        used = run([sys.executable, "-m", "aam", *argv], log)
        sizes = [f.stat().st_size for f in files_of(output)]
        row = (f"{used.cpu:.1f}", f"{used.seconds:.1f}", f"{used.peak / 2**20:.0f}",
               f"{sum(sizes) / 1e6:.1f}", str(len(sizes)))  # fmt: skip
        rows.add_row(name, *row)
        console.print(name, *row, highlight=False)

    if not store.exists():
        tree = folder / "tree.nwk"
        given = ["--table", str(folder / "table.biom"), "--output", str(store)]
        given += ["--tree", str(tree)] if tree.exists() else []
        step("prepare", store, "prepare", *given)
    common = ["--table", str(store), "--model", str(options.model), "--device", "cpu",
              "--batch-size", str(BATCH_SIZE), "--asv-vectors-dir", str(vectors)]  # fmt: skip
    outputs = {
        "embed": (folder / "embeddings.tsv", ["--output-dir", str(folder)]),
        "predict": (folder / "predictions.tsv", ["--output", str(folder / "predictions.tsv")]),
    }
    for command, (table, given) in outputs.items():
        step(command, table, command, *common, *given, "--overwrite")
    console.print(rows)


def run(argv: list[str], log: Any) -> Usage:
    """Run a command with limited private memory; its output goes to `log`."""
    began = time.perf_counter()
    process = subprocess.Popen(
        argv,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT)),
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"exit status {os.waitstatus_to_exitcode(status)}: {' '.join(argv)}")
    seconds = time.perf_counter() - began
    return Usage(used.ru_utime + used.ru_stime, seconds, used.ru_maxrss * 1024)


def files_of(path: Path) -> list[Path]:
    """Return the files of a folder and of its folders, or the file itself."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def main() -> None:
    """Parse the command line and run a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    maker = commands.add_parser("make")
    maker.add_argument("folder", type=Path)
    maker.add_argument("--study", type=Path, required=True, help="table whose ids are sequences")
    maker.add_argument("--tree", type=Path, help="Newick tree of the study")
    maker.add_argument("--samples", type=int, default=1000)
    maker.add_argument("--templates", type=int, default=100)
    maker.add_argument("--richness", type=int, default=200)
    maker.add_argument("--asvs", type=int, default=5000)
    maker.set_defaults(run=make)
    measured = commands.add_parser("measure")
    measured.add_argument("folder", type=Path)
    measured.add_argument("--model", type=Path, required=True, help="run folder of `aam train`")
    measured.set_defaults(run=measure)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
