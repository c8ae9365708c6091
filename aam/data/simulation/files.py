"""Files of a simulated study: table, tree, metadata, taxonomy and truth."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam import __version__
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.studies import Simulate
from aam.data.simulation.evolution import clades, newick
from aam.data.simulation.simulate import SimulatedStudy

_CREATION_DATE = datetime(2000, 1, 1)  # Fixed, so that two tables of one seed are equal.

_FAMILIES, _GENERA = 12, 72
"""Clades of the tree that the taxonomy names as families and as genera."""


def write_study(study: SimulatedStudy, options: Simulate) -> tuple[Path, ...]:
    """Write table.biom, tree.nwk, metadata.tsv, taxonomy.tsv and truth.json; all or none.

    Table and taxonomy leave out ASVs without reads, the tree does not.

    Args:
        study: study to write.
        options: options of `aam simulate`; --output-dir is the folder of the files.

    Returns:
        Paths of the five files.

    Raises:
        CannotCreate: a file exists and `options.overwrite` is false, or no permission.
    """
    seen = np.unique(study.counts.indices)
    writers: dict[str, Callable[[Path], Any]] = {
        "table.biom": lambda path: _write_biom(
            path, study.sample_ids, [study.sequences[f] for f in seen], study.counts[:, seen]
        ),
        "tree.nwk": lambda path: path.write_text(newick(study.tree, study.sequences)),
        "metadata.tsv": lambda path: path.write_text(_metadata(study)),
        "taxonomy.tsv": lambda path: path.write_text(_taxonomy(study, seen)),
        "truth.json": lambda path: path.write_text(
            json.dumps(truth(study, options), indent=1) + "\n"
        ),
    }
    places = tuple(options.output_dir / name for name in writers)
    for place in places:
        refuse_existing(place, options.overwrite)
    with ExitStack() as stack:
        for place, write in zip(places, writers.values(), strict=True):
            write(stack.enter_context(atomic_write(place)))
    return places


def truth(study: SimulatedStudy, options: Simulate) -> dict[str, Any]:
    """Return the content of `truth.json`: parameters, measurements, gradient, niches, effects.

    `r2_of_the_gradient` is the R2 of the unmeasured gradient against the column `ph`, the upper
    bound for every predictor.
    """
    parameters = asdict(options)
    del parameters["output_dir"], parameters["overwrite"]
    error = float(np.square(study.ph - study.gradient).sum())
    spread = float(np.square(study.ph - study.ph.mean()).sum())
    return {
        "aam": __version__,
        "parameters": parameters,
        "measured": {
            "asvs_with_reads": len(np.unique(study.counts.indices)),
            "reads": int(study.reads.sum()),
            "mean_richness": round(float(study.richness.mean()), 2),
            "mean_depth": round(float(study.reads.mean()), 2),
            "r2_of_the_gradient": round(1 - error / spread, 4) if spread else None,
        },
        "gradient_ph": dict(zip(study.sample_ids, study.gradient.round(4).tolist(), strict=True)),
        "niches_ph": {
            name: [round(optimum, 4), round(width, 4)]
            for name, optimum, width in zip(
                study.sequences, study.optimum.tolist(), study.width.tolist(), strict=True
            )
        },
        "planted": {
            study.sequences[f]: effect
            for f, effect in zip(study.planted.tolist(), study.effects.tolist(), strict=True)
        },
    }


def _write_biom(
    path: Path, samples: Sequence[str], features: Sequence[str], counts: sparse.csr_array
) -> None:
    import biom
    import h5py

    by_feature = sparse.csr_matrix(counts.T, dtype=np.float64)
    table = biom.Table(by_feature, list(features), list(samples), type="OTU table")
    content = io.BytesIO()  # HDF5 prints tracebacks of its own when a disk is full.
    with h5py.File(content, "w") as file:
        table.to_hdf5(file, f"aam {__version__}", creation_date=_CREATION_DATE)
    path.write_bytes(content.getvalue())


def _metadata(study: SimulatedStudy) -> str:
    columns: dict[str, tuple[str, list[str]]] = {
        "ph": ("numeric", [f"{value:.2f}" for value in study.ph]),
        "site": ("categorical", [f"site-{number + 1}" for number in study.site]),
        "subject": ("categorical", [f"subject-{number + 1:03d}" for number in study.subject]),
        "depth": ("numeric", [str(reads) for reads in study.reads]),
    }
    if len(study.planted):
        columns["response"] = ("numeric", [f"{value:.4f}" for value in study.response])
    lines = [("sample-id", *columns), ("#q2:types", *(kind for kind, _ in columns.values()))]
    lines += zip(study.sample_ids, *(values for _, values in columns.values()), strict=True)
    return "".join("\t".join(line) + "\n" for line in lines)


def _taxonomy(study: SimulatedStudy, asvs: npt.NDArray[np.int32]) -> str:
    """Return the taxa of ASVs, clades of the tree, as QIIME 2 writes a taxonomy."""
    family, genus = (clades(study.tree, count) for count in (_FAMILIES, _GENERA))
    lines = ["Feature ID\tTaxon"]
    for asv in asvs.tolist():
        first, second = family[asv] + 1, genus[asv] + 1
        taxon = f"d__Simulated; f__Family-{first}; g__Genus-{first}.{second}"
        lines.append(f"{study.sequences[asv]}\t{taxon}")
    return "".join(f"{line}\n" for line in lines)
