"""Door of the network: the functions of `aam.wings.Network`, documented there.

Each function imports PyTorch when it is called, because the import takes 2 CPU-seconds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aam.contract.options.commands.studies import Unifrac
    from aam.contract.options.commands.train import Train
    from aam.contract.options.groups import DeviceOptions, RankOptions
    from aam.data.distances import DistanceMatrix
    from aam.network.distributed.collectives import Communicator
    from aam.network.inference.stored_networks import ModelConfig
    from aam.network.numerics.backends import BackendPolicy
    from aam.network.transformer_member import TransformerReader
    from aam.pipeline.labelled_study import LabelledStudy
    from aam.pipeline.plan import Session


def member() -> TransformerReader:
    from aam.network.transformer_member import MEMBER

    return MEMBER


def start_session(
    options: Train, labelled: LabelledStudy | None, policy: BackendPolicy | None
) -> Session:
    from aam.network.session import NetworkSession

    return NetworkSession.start(options, labelled, policy)


def sequence_length(options: Train) -> int | None:
    from aam.network.training.runs import choose_length, read_pretrained_encoder

    return choose_length(read_pretrained_encoder(options.pretrained_encoder), options.sample)


def checkpoint_config(path: Path) -> ModelConfig:
    from aam.network.training import checkpoints

    return checkpoints.read(path).config


def process_group(
    scale: RankOptions, device: DeviceOptions
) -> AbstractContextManager[Communicator]:
    from aam.network.distributed.process_group import process_group

    return process_group(scale, device)


def visible_gpus() -> int:
    from torch import cuda

    return cuda.device_count()


def require_device(options: DeviceOptions) -> None:
    from aam.network.numerics.device import choose_device

    choose_device(options)


def own_generators() -> AbstractContextManager[None]:
    import torch

    return torch.random.fork_rng()


def tensorboard_writer() -> tuple[Any, Any]:
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    return SummaryWriter, hparams


def unifrac_matrix(options: Unifrac) -> DistanceMatrix:
    from aam.network.unifrac import distances

    return distances(options)
