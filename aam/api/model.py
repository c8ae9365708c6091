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
from aam.console import as_library
from aam.contract.errors import DataError
from aam.contract.options.commands.use import Predict
from aam.contract.options.device import Device, DeviceOptions
from aam.data.metadata import ID_HEADER
from aam.data.study import load_study
from aam.data.taxonomy import read_taxonomy
from aam.inference.new_samples import read_covariates, select_as_trained
from aam.inference.settings import NO_VECTORS, InferenceSettings
from aam.members.importance import importance_table
from aam.members.model_file import PretrainedModel, TrainedModel, read, trained
from aam.members.predict import predict_table

_UNNAMED = "unnamed-"
"""Begins the sample ids of an array, so that they are not those of the training samples."""


@dataclass(frozen=True)
class Model:
    """Model of `aam pretrain` or `aam train`.

    Attributes:
        path: where it was read; it is not read again.
        device: where it computes.
        loaded: its members and their combination, or an encoder.
    """

    path: Path
    device: DeviceOptions
    loaded: TrainedModel | PretrainedModel

    @property
    def column(self) -> str | None:
        """The metadata column that the model predicts; None if it was pretrained only."""
        return self.loaded.column

    def __repr__(self) -> str:
        predicts = "pretrained encoder" if self.column is None else f"predicts '{self.column}'"
        members = f"members {', '.join(self.loaded.models)}"
        return f"aam.Model('{self.path}', device='{self.device.device}')\n  {predicts}, {members}"

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
            found, comparison = predict_table(trained(self.loaded, self.path), options)
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
            loaded = trained(self.loaded, self.path)
            if taxonomy is not None and not isinstance(taxonomy, Mapping):
                instead = "a dictionary from feature id to taxon"
                taxonomy = read_taxonomy(path_argument("taxonomy", taxonomy, instead))
            study = load_study(input, max_bp=loaded.max_bp)
            path = metadata_file(metadata, folder)
            study = select_as_trained(study, loaded.facts.options, path)
            covariates = read_covariates(loaded.encoder, path, study.table.sample_ids)
            found = importance_table(loaded, study, taxonomy, covariates)
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
        settings = InferenceSettings(argument(Predict, "batch_size", batch_size))
        with table_files(table, sequences, drop_empty_samples) as (input, _):
            study = load_study(input, max_bp=self.loaded.max_bp)
            each = (model.embed(study, settings) for model in self.loaded.models.values())
            embeddings = next((found for found in each if found is not None), None)
        if embeddings is None:
            raise DataError(
                "The model has no embedding",
                f"'{self.path}' has no network",
                "train with the member transformer, or load an encoder of `aam pretrain`",
            )
        index = pd.Index(study.table.sample_ids, name=ID_HEADER)
        names = [f"e{axis}" for axis in range(embeddings.shape[1])]
        return pd.DataFrame(embeddings, index=index, columns=names)


def load(run: str | PathLike[str], device: Device | Literal["gpu"] = "auto") -> Model:
    """Load the model of a run folder.

    >>> import aam
    >>> aam.load("runs/age").predict("table.biom")  # doctest: +SKIP

    Args:
        run: run folder of `aam train` or `aam pretrain`, its folder `model`, or a copy of that.
        device: `gpu` or `cuda` is any GPU; `auto` takes one if there is one.

    Raises:
        UsageError: there is no such device.
        MissingInput: there is no model.
        DataError: it is damaged, edited or of another version.
        Unavailable: a GPU was requested and there is none.
    """
    options = DeviceOptions(device=argument(DeviceOptions, "device", device))
    path = path_argument("run", run, "a pathlib.Path")
    with as_library():
        return Model(path, options, read(path, options))
