"""Door of the network: the functions of `aam.wings.Network`, documented and typed there.

Each function imports PyTorch when it is called, because the import takes 2 CPU-seconds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.contract.preflight import check_run_folder

if TYPE_CHECKING:
    from aam.contract.options.commands.train import Pretrain, Train
    from aam.contract.options.groups import DeviceOptions, RankOptions


def member() -> Any:
    from aam.network.transformer_member import MEMBER

    return MEMBER


def start_session(options: Train, labelled: Any, policy: Any) -> Any:
    from aam.network.training.runs import NetworkSession

    return NetworkSession.start(options, labelled, policy)


def sequence_length(options: Train) -> int | None:
    from aam.network.training.configuration import choose_length, read_pretrained_encoder

    return choose_length(read_pretrained_encoder(options), options.sample)


def checkpoint_config(path: Path) -> Any:
    from aam.network.training import checkpoints

    return checkpoints.read(path).config


def process_group(scale: RankOptions, device: DeviceOptions) -> AbstractContextManager[Any]:
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


def run_pretrain(options: Pretrain) -> None:
    """Run `aam pretrain`: train an encoder without labels."""
    run = options.run
    check_run_folder(run.output_dir, run.overwrite, run.resume_from is not None)
    from aam.network.training.runs import pretrain

    pretrain(options)


def unifrac_matrix(options: Any) -> Any:
    from aam.network.unifrac import distances

    return distances(options)
