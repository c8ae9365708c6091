"""Trained models in Python: load a run folder, predict and embed tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

import pandas as pd

from aam.api.arguments import argument, path_argument
from aam.api.tables import Sequences, Table, has_sample_ids, metadata_file, table_files
from aam.commands.predict import predict_study
from aam.console import as_library
from aam.contract.errors import DataError
from aam.contract.options.commands.use import Predict
from aam.contract.options.device import Device, DeviceOptions
from aam.data.metadata import ID_HEADER
from aam.data.study import load_study
from aam.data.taxonomy import read_taxonomy
from aam.inference.asv_vectors import NO_VECTORS
from aam.inference.new_samples import read_covariates, select_as_trained
from aam.inference.prediction import (
    InferenceSettings,
    LoadedModel,
    build_models,
    embed,
    load_samples,
)
from aam.members import checkpoint
from aam.members.checkpoint import EnsembleCheckpoint
from aam.members.importance import importance_table, read_members
from aam.members.predict import predict_table
from aam.numerics.device import choose_device
from aam.training.run_files.checkpoints import load_models

_UNNAMED = "unnamed-"
"""Begins the sample ids of an array, so that they are not those of the training samples."""


@dataclass(frozen=True)
class Model:
    """Model of `aam pretrain` or `aam train`.

    Attributes:
        path: where it was read; it is not read again.
        device: where it computes.
        networks: one, or one for each fold, with weights and configuration.
        ensemble: members and their combination; None for networks alone.
    """

    path: Path
    device: DeviceOptions
    networks: tuple[LoadedModel, ...]
    ensemble: EnsembleCheckpoint | None = None

    @property
    def column(self) -> str | None:
        """The metadata column that the model predicts; None if it was pretrained only."""
        if self.ensemble is not None:
            return self.ensemble.stored.column
        target = self.networks[0].config.target
        return None if target is None else target.column

    def __repr__(self) -> str:
        parts = [
            "pretrained encoder" if self.column is None else f"predicts '{self.column}'",
            "" if self.ensemble is None else f"members {', '.join(self.ensemble.stored.weights)}",
            f"{len(self.networks)} network{'s' * (len(self.networks) > 1)}" * bool(self.networks),
        ]
        facts = ", ".join(part for part in parts if part)
        return f"aam.Model('{self.path}', device='{self.device.device}')\n  {facts}"

    def predict(
        self,
        table: Table,
        sequences: Sequences = None,
        *,
        metadata: str | PathLike[str] | pd.DataFrame | None = None,
        batch_size: int = 32,
        prediction_passes: int = 1,
        drop_empty_samples: bool = False,
    ) -> pd.DataFrame:
        """Predict the target for every sample of a table.

        Args:
            table: see `aam.api.tables.Table`; its ASVs need not be those of the training. The
                samples of an array have no ids, and count as new.
            sequences: DNA of the features; None if the ids are the sequences.
            metadata: of a model that reads metadata columns: file, or DataFrame by sample id. It
                applies the --where of the training.
            batch_size: samples at a time; the predictions depend on it by rounding alone.
            prediction_passes: rarefactions to average over.
            drop_empty_samples: leave out samples without reads instead of raising.

        Returns:
            A row for each sample: `predicted` in the units of the metadata, or the class;
            `p_CLASS` or `q_QUANTILE`, and the further columns of `aam predict`.

        Raises:
            UsageError: the model reads metadata columns and none are given, or an argument is not
                of its type or range.
            DataError: not a table of reads, features without DNA, or a model without target.
        """
        unnamed = "" if has_sample_ids(table) else _UNNAMED
        with table_files(table, sequences, drop_empty_samples, unnamed) as (input, folder):
            options = Predict(
                input=input,
                device=self.device,
                vectors=NO_VECTORS,
                model=self.path,
                output=Path("unwritten.tsv"),
                metadata=metadata_file(metadata, folder),
                batch_size=argument(Predict, "batch_size", batch_size),
                prediction_passes=argument(Predict, "prediction_passes", prediction_passes),
            )
            if self.ensemble is not None:
                found, comparison = predict_table(self.ensemble, options)
            else:
                found, comparison = predict_study(self.networks, options)
            comparison.show()
        found[ID_HEADER] = found[ID_HEADER].str.removeprefix(unnamed)
        return found.set_index(ID_HEADER)

    def importance(
        self,
        table: Table,
        sequences: Sequences = None,
        *,
        metadata: str | PathLike[str] | pd.DataFrame | None = None,
        taxonomy: str | PathLike[str] | Mapping[str, str] | None = None,
        drop_empty_samples: bool = False,
    ) -> pd.DataFrame:
        """Return how much the predictions depend on each ASV, by feature id, highest first.

        Args:
            table: samples over which the importance is averaged.
            sequences: see `Sequences`.
            metadata: see `predict`.
            taxonomy: taxon of each feature id, or a TSV or .qza file of QIIME 2.
            drop_empty_samples: leave out samples without reads instead of raising.

        Returns:
            The columns of `aam importance`.

        Raises:
            UsageError: the model reads metadata columns and none are given.
            DataError: not a table of reads, features without DNA, no ASV of the training data, no
                ASV in the taxonomy, or a model without target.
        """
        with table_files(table, sequences, drop_empty_samples) as (input, folder):
            loaded = self.ensemble or read_members(self.path)
            if taxonomy is not None and not isinstance(taxonomy, Mapping):
                instead = "a dictionary from feature id to taxon"
                taxonomy = read_taxonomy(path_argument("taxonomy", taxonomy, instead))
            study = load_study(input, max_bp=loaded.max_bp)
            path = metadata_file(metadata, folder)
            study = select_as_trained(study, loaded.stored.options, path)
            covariates = read_covariates(loaded.encoder, path, study.table.sample_ids)
            found = importance_table(loaded, study, taxonomy, covariates, self.device)
            return found.set_index("feature-id")

    def embed(
        self,
        table: Table,
        sequences: Sequences = None,
        *,
        batch_size: int = 32,
        drop_empty_samples: bool = False,
    ) -> pd.DataFrame:
        """Return the embedding of every sample, float32 [N, D]: rows by sample id, e0, e1, ...

        With several folds it is the embedding of the first: those of different networks have no
        common axes.

        Raises:
            DataError: not a table of reads, features without DNA, or a model without network.
        """
        if not self.networks:
            raise DataError(
                "The model has no embedding",
                f"'{self.path}' has no network",
                "train with the member transformer, or load an encoder of `aam pretrain`",
            )
        model = self.networks[0]
        with table_files(table, sequences, drop_empty_samples) as (input, _):
            study = load_samples(input, model.config)
            size = argument(Predict, "batch_size", batch_size)
            settings = InferenceSettings(size, choose_device(self.device))
            embeddings = embed(model, study, settings)
        index = pd.Index(study.table.sample_ids, name=ID_HEADER)
        names = [f"e{axis}" for axis in range(embeddings.shape[1])]
        return pd.DataFrame(embeddings, index=index, columns=names)


def load(run: str | PathLike[str], device: Device | Literal["gpu"] = "auto") -> Model:
    """Load the model of a run folder or checkpoint.

    >>> import aam
    >>> aam.load("runs/age").predict("table.biom")  # doctest: +SKIP

    Args:
        run: run folder of `aam train` or `aam pretrain`, or a checkpoint.
        device: `gpu` or `cuda` is any GPU; `auto` takes one if there is one.

    Raises:
        UsageError: there is no such device.
        MissingInput: there is no checkpoint.
        DataError: it cannot be read, or the folds are of different runs.
        Unavailable: a GPU was requested and there is none.
    """
    options = DeviceOptions(device=argument(DeviceOptions, "device", device))
    path = path_argument("run", run, "a pathlib.Path")
    with as_library():
        if (file := checkpoint.find(path)) is None:
            return Model(path, options, tuple(load_models(path, options)))
        ensemble = checkpoint.read(file)
        stored = ensemble.networks
        networks = build_models(stored, [path] * len(stored), options) if stored else []
        return Model(path, options, tuple(networks), ensemble)
