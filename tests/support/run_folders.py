"""Run folders for tests of the report: the files that training writes, from a simulated study."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import numpy as np

from aam.contract import run_files
from aam.contract.options import build, to_plain
from aam.contract.options.commands import find
from aam.contract.options.commands.studies import Example
from aam.data.sequences import encode
from aam.data.simulation import SimulatedStudy, simulate, write_study
from aam.evaluation.folds import Folds
from aam.evaluation.labels import Labels
from aam.evaluation.splits import Split, make_splits, write_splits
from aam.members.forest import Forest
from aam.members.member import TrainingSamples
from aam.members.prediction_tables import held_out_table
from aam.members.relations import AsvRelations
from aam.members.samples import Samples

EPOCHS = 30
WHO = {"version": "0.1.0", "host": {"name": "node-1", "cores": 8, "devices": ["Some GPU"]}}


def make_study(folder: Path, samples: int = 120) -> SimulatedStudy:
    options = Example(
        output_dir=folder, samples=samples, asvs=300, length=60, richness=60, depth=3000,
        subjects=samples // 4,
    )  # fmt: skip
    study = simulate(options)
    write_study(study, options)
    return study


def make_run(folder: Path, files: Path, study: SimulatedStudy, kind: str, folds: int = 1) -> Path:
    """Write a run folder; `kind` is pretrain, numbers or classes."""
    folder.mkdir(parents=True)
    trained = kind != "pretrain"
    splits = make_splits(len(study.sample_ids), test_size=0.2, folds=folds, seed=1)
    write_splits(folder / "splits.tsv", study.sample_ids, splits)
    for fold in range(1, folds + 1):
        place = folder if folds == 1 else folder / f"fold-{fold}"
        place.mkdir(exist_ok=True)
        _write_curves(place / "metrics.csv", kind, seed=fold)
    _write_embeddings(folder / "embeddings.tsv", study)
    if trained:
        _write_predictions(folder / "predictions.tsv", study, splits, kind == "classes")
    _write_record(folder / "run.json", files, study, kind, splits[0], folds)
    return folder


def _write_curves(path: Path, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    epoch = np.arange(EPOCHS)

    def falling(high: float, low: float) -> np.ndarray:
        return low + (high - low) * np.exp(-epoch / 8) + rng.normal(0, 0.01 * high, EPOCHS)

    columns = {"epoch": epoch, "step": 12 * (epoch + 1), "seconds": 3.0 * (epoch + 1)}
    columns["lr"] = 5e-4 * (1 + np.cos(np.pi * epoch / EPOCHS))
    for side, worse in (("train", 0.0), ("val", 0.05)):
        parts = {"unifrac": falling(0.4, 0.1 + worse), "nucleotide": falling(1.4, 0.8 + worse)}
        if kind != "pretrain":
            parts["target"] = falling(0.7, 0.2 + worse)
        columns[f"{side}_loss"] = sum(parts.values())
        columns |= {f"{side}_{name}": part for name, part in parts.items()}
        columns[f"{side}_nucleotide_accuracy"] = 0.9 - falling(0.6, 0.3 + worse)
    if kind == "numbers":
        columns |= {"val_r2": 0.8 - falling(0.8, 0.1), "val_mae": falling(1.3, 0.5)}
    if kind == "classes":
        columns |= {"val_accuracy": 1 - falling(0.6, 0.2), "val_f1": 1 - falling(0.7, 0.2)}
    lines = [",".join(columns)]
    for k in range(EPOCHS):
        # A metric may be absent: nothing was measured in the first validation.
        cells = ["" if k == 0 and n == "val_r2" else f"{c[k]:.6g}" for n, c in columns.items()]
        lines.append(",".join(cells))
    path.write_text("\n".join(lines) + "\n")


def _write_embeddings(path: Path, study: SimulatedStudy) -> None:
    rng = np.random.default_rng(0)
    away = (study.places.gradient_ph - 6.5)[:, None] * rng.standard_normal(16)
    vectors = away + np.eye(16)[study.places.site] + rng.normal(0, 0.4, (len(study.places.ph), 16))
    lines = ["sample-id\t" + "\t".join(f"e{k}" for k in range(16))]
    for name, vector in zip(study.sample_ids, vectors, strict=True):
        lines.append(name + "\t" + "\t".join(f"{value:.6g}" for value in vector))
    path.write_text("\n".join(lines) + "\n")


def _write_predictions(
    path: Path, study: SimulatedStudy, splits: tuple[Split, ...], classifier: bool
) -> None:
    names = tuple(f"site-{k + 1}" for k in range(study.places.site.max() + 1)) if classifier else ()
    values = (study.places.site if classifier else study.places.ph).astype(np.float64)
    folds = Folds(Labels.of(values, names, None), splits, 42)
    tokens_FL = encode(study.feature_ids, None)
    samples = TrainingSamples(Samples(study.counts, tokens_FL), AsvRelations(tokens_FL))
    found = Forest(30, n_jobs=1).cross_validate(samples, folds)
    table = held_out_table(study.sample_ids, folds, found.predictions_MC)
    table.to_csv(path, sep="\t", index=False, float_format="%.6g")


def _write_record(
    path: Path, files: Path, study: SimulatedStudy, kind: str, split: Split, folds: int
) -> None:
    command = "pretrain" if kind == "pretrain" else "train"
    given: dict[str, object] = {
        "--table": files / "table.biom",
        "--output-dir": path.parent,
        "--tree": files / "tree.nwk",
        "--embedding-dim": 16,
        "--group-column": "subject",
        "--epochs": EPOCHS,
    }
    if kind != "pretrain":
        given |= {
            "--metadata": files / "metadata.tsv",
            "--metadata-column": "site" if kind == "classes" else "ph",
            "--classifier": kind == "classes",
        }
    options = build(typing.cast(type, find(command)), given)
    inputs = {"--table": "table.biom", "--tree": "tree.nwk"}
    if kind != "pretrain":
        inputs["--metadata"] = "metadata.tsv"
    record = {
        "aam": WHO["version"],
        "command": command,
        "argv": ["/somewhere/bin/aam", command, "--table", "a table.biom"],
        "started": "2026-01-02T03:04:05+00:00",
        "finished": "2026-01-02T04:04:05+00:00",
        "seconds": 3600.0,
        "host": WHO["host"],
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "options": to_plain(options),
        "inputs": {
            flag: {"path": str(files / name), "bytes": 1234567, "sha256": "0123456789abcdef" * 4}
            for flag, name in inputs.items()
        },
        "samples": {part: len(getattr(split, part)) for part in ("train", "validation", "test")},
        "asvs": len(study.feature_ids),
        "rarefy_depth": 2000,
        "parameters": 123456,
        "epochs": EPOCHS,
        "best": {"best_val_loss": 1.23},
        # Those that a test writes later too.
        "files": [*run_files.planned(folds), run_files.UNIFRAC],
    }
    path.write_text(json.dumps(record))
