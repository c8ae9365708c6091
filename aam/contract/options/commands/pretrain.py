"""Options of `aam pretrain`."""

from dataclasses import dataclass
from pathlib import Path

from aam.contract.options import basic_option
from aam.contract.options.device import DeviceOptions, ScaleOptions, SpeedOptions
from aam.contract.options.study import PhylogenyOptions, SampleOptions, SplitOptions, TableOptions
from aam.contract.options.training import LoopOptions, MaskOptions, ModelOptions, RunOptions


@dataclass(frozen=True)
class Pretrain:
    """Pretrain an encoder without labels, on masked nucleotides and UniFrac distances.

    Examples:
        aam pretrain --table table.biom --tree tree.nwk --output-dir run
        aam pretrain --config pretrain.yaml --output-dir run2 --seed 2
    """

    input: TableOptions
    phylogeny: PhylogenyOptions
    run: RunOptions
    sample: SampleOptions
    model: ModelOptions
    task: MaskOptions
    split: SplitOptions
    loop: LoopOptions
    speed: SpeedOptions
    device: DeviceOptions
    scale: ScaleOptions
    metadata: Path | None = basic_option("Sample metadata; only needed for --group-column.")
    pretrained_encoder: Path | None = basic_option(
        "Checkpoint or run folder to start from, of this or another study; it determines the "
        "sizes of the encoder."
    )
