"""Options of the network for the estimators, with the names and defaults of `aam train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from aam.api.arguments import short_repr
from aam.contract.errors import UsageError, nearest
from aam.contract.options.groups import (
    AttnImplementation,
    CompileModel,
    Device,
    LossType,
    Metric,
    MixedPrecision,
)

if TYPE_CHECKING:  # scikit-bio takes a CPU-second to import
    from skbio import TreeNode


@dataclass(frozen=True, kw_only=True)
class TransformerOptions:
    """Options of the network (member `transformer`), for the parameter `network` of an estimator.

    Each has the name, meaning and default of an option of `aam train`; `aam train --help-all`
    explains them. `tree` may also be a skbio.TreeNode.

    >>> from aam import AAMRegressor, TransformerOptions
    >>> AAMRegressor(network=TransformerOptions(lr=1e-3, epochs=20)).network
    TransformerOptions(epochs=20, lr=0.001)
    """

    # Start, sizes and inputs
    pretrained_encoder: str | PathLike[str] | None = None
    freeze_base: bool = False
    embedding_dim: int = 128
    attention_heads: int = 4
    attention_layers: int = 2
    nucleotide_patch: Literal[1, 3, 5] = 5
    dropout: float = 0.1
    profile_features: int = 1024
    profile_dropout: float = 0.7
    categorical_embed_dim: int = 16
    categorical_fusion: Literal["concat", "add"] = "concat"
    max_bp: int | Literal["auto"] = "auto"
    token_limit: int = 1024
    rarefy_depth: int | Literal["auto"] = "auto"
    rarefy_each_epoch: bool = True
    # Losses
    loss_type: LossType = "huber"
    quantiles: Sequence[float] = (0.1, 0.5, 0.9)
    over_penalty: float = 1.0
    under_penalty: float = 1.0
    class_weights: str = "none"
    target_penalty: float = 1.0
    penalty: float = 1.0
    nuc_mask_ratio: float = 0.15
    nuc_penalty: float = 1.0
    count_penalty: float = 0.0
    # UniFrac
    tree: str | PathLike[str] | TreeNode | None = None
    unifrac_matrix: str | PathLike[str] | None = None
    unifrac_metric: Metric = "unweighted"
    unifrac_alpha: float = 0.5
    drop_missing_asvs: bool = False
    root_at_midpoint: bool = False
    # Training loop
    epochs: int = 50
    batch_size: int | Literal["auto"] = 16
    global_batch_size: int = 16
    gradient_accumulation_steps: int = 1
    even_batches: bool = False
    lr: float = 3e-4
    warmup_fraction: float = 0.1
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    patience: int = 20
    best_metric: Literal["val_loss", "r2", "mae", "accuracy", "f1"] = "val_loss"
    # Device, precision and memory
    device: Device | Literal["gpu"] = "auto"
    check: bool = True
    attn_implementation: AttnImplementation = "auto"
    mixed_precision: MixedPrecision = "none"
    report_fp32_fallbacks: bool = False
    compile_model: CompileModel = "off"
    gradient_checkpointing: bool = False
    asv_chunk: int | Literal["auto"] = 0
    num_workers: int | Literal["auto"] = "auto"
    cpu_threads: int | Literal["auto"] = "auto"
    prefetch_factor: int = 2
    asv_vectors_dir: str | PathLike[str] | None = None
    asv_vectors_dtype: Literal["float32", "float16"] = "float32"

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TransformerOptions:
        """Return options of the network by name as their record; refuse unknown names."""
        try:
            return cls(**options)
        except TypeError as error:
            available = [option.name for option in fields(cls)]
            unknown = next(name for name in options if name not in available)
            remedy = nearest(str(unknown), available, f"give one of {', '.join(available)}")
            raise UsageError(
                "No such option of the network", short_repr(unknown), remedy
            ) from error

    def __repr__(self) -> str:
        defaults = {option.name: option.default for option in fields(self)}
        changed = {n: v for n, v in vars(self).items() if repr(v) != repr(defaults[n])}
        return f"TransformerOptions({', '.join(f'{n}={v!r}' for n, v in changed.items())})"
