"""Scikit-learn estimators: `AAMRegressor` and `AAMClassifier`, `aam train` in memory.

Their parameters are the options of `aam train`, with the same names and defaults, so that
`GridSearchCV`, `cross_val_score` and pipelines can set them.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_non_negative

from aam.api.arguments import aligned, argument, metadata_ids, path_argument, shown
from aam.api.model import Model, load
from aam.api.tables import (
    Sequences,
    Table,
    as_biom,
    is_array,
    sequences_in_memory,
    table_in_memory,
    tree_file,
)
from aam.console import as_library
from aam.contract.errors import DataError, UsageError, first_few
from aam.contract.options import from_plain, specs
from aam.contract.options.commands.train import Train
from aam.contract.options.contradictions import require_consistent
from aam.contract.options.device import Device
from aam.contract.options.members import MemberName
from aam.contract.options.study import Metric
from aam.contract.options.training import LossType, TransformName
from aam.data.metadata import Metadata
from aam.data.study import make_study
from aam.members.option_checks import resolve
from aam.pipeline.run import fit, run
from aam.pipeline.session import sequence_length
from aam.training.labelled_study import label_study

IN_MEMORY = Path("in memory")
"""Path of a table and of labels that are no files, in the record of the options."""


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """Training of `aam train` on a table in memory.

    Attributes:
        model_: the trained `aam.Model`.
        n_features_in_: number of features of the training table. New tables may have others: they
            are read by their DNA.
        feature_names_in_: ids of these features, object [n_features_in_]; a table whose features
            have no ids, such as an array, leaves it out.
    """

    def __init__(
        self,
        *,
        members: MemberName | Sequence[MemberName] = (),
        folds: int | Literal["auto"] = "auto",
        device: Device = "auto",
        seed: int = 42,
        sequences: Sequences = None,
        output_dir: str | PathLike[str] | None = None,
        overwrite: bool = False,
        test_size: float = 0.2,
        splits: str | PathLike[str] | None = None,
        max_bp: int | Literal["auto"] = "auto",
        stratify: bool = True,
        num_workers: int | Literal["auto"] = "auto",
        cpu_threads: int | Literal["auto"] = "auto",
        attn_implementation: Literal["auto", "sdpa", "math", "mem_efficient", "flash"] = "auto",
        check: bool = True,
        target_transform: TransformName = "zscore",
        output_min: float | None = None,
        output_max: float | None = None,
        epochs: int = 50,
        pretrained_encoder: str | PathLike[str] | None = None,
        tree: str | PathLike[str] | None = None,
        rarefy_depth: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = 16,
        lr: float = 0.0003,
        freeze_base: bool = False,
        unifrac_matrix: str | PathLike[str] | None = None,
        unifrac_metric: Metric = "unweighted",
        unifrac_alpha: float = 0.5,
        drop_missing_asvs: bool = False,
        root_at_midpoint: bool = False,
        rarefy_each_epoch: bool = True,
        token_limit: int = 1024,
        embedding_dim: int = 128,
        attention_heads: int = 4,
        attention_layers: int = 2,
        nucleotide_patch: Literal[1, 3, 5] = 5,
        dropout: float = 0.1,
        nuc_mask_ratio: float = 0.15,
        penalty: float = 1.0,
        nuc_penalty: float = 1.0,
        count_penalty: float = 0.0,
        global_batch_size: int = 16,
        gradient_accumulation_steps: int = 1,
        even_batches: bool = False,
        warmup_fraction: float = 0.1,
        weight_decay: float = 0.1,
        max_grad_norm: float = 1.0,
        patience: int = 20,
        mixed_precision: Literal["none", "bf16", "fp16", "auto"] = "none",
        report_fp32_fallbacks: bool = False,
        compile_model: Literal["off", "auto", "force"] = "off",
        gradient_checkpointing: bool = False,
        asv_chunk: int | Literal["auto"] = 0,
        prefetch_factor: int = 2,
        asv_vectors_dir: str | PathLike[str] | None = None,
        asv_vectors_dtype: Literal["float32", "float16"] = "float32",
        profile_features: int = 1024,
        profile_dropout: float = 0.7,
        target_penalty: float = 1.0,
        loss_type: LossType = "huber",
        quantiles: float | Sequence[float] = (0.1, 0.5, 0.9),
        over_penalty: float = 1.0,
        under_penalty: float = 1.0,
        class_weights: str = "none",
        best_metric: Literal["val_loss", "r2", "mae", "accuracy", "f1"] = "val_loss",
    ) -> None:
        """Set the parameters, which are the options of `aam train`.

        Args:
            members: models to train; several are combined. kernel: ridge regression on the kernels
                of the sequences and of their clades; forest: random forest on relative abundances;
                transformer: the network. Empty: kernel and forest, or with pretrained_encoder the
                transformer.
            folds: cross-validation: number of folds, each predicted by models of the others; 1: one
                split. 'auto': 5, or one for each group if there are fewer; 1 with the transformer,
                which takes long to train.
            device: where to compute. 'gpu' or 'cuda': a GPU of any vendor; 'auto': a GPU if there
                is one, else the CPU.
            seed: random seed of splits, weights, masks, rarefaction and sample order (0 to
                4294967295).
            sequences: DNA by feature id, or a FASTA or .qza file; None if the ids are the
                sequences.
            output_dir: run folder to write, for `aam report`, `aam.load` and the plots of `model_`;
                None writes none.
            overwrite: replace an existing run in the folder.
            test_size: fraction of the samples that validate: with one fold they measure the result,
                with several the transformer stops by them, and the fold measures. 0: no validation
                samples, all samples outside the fold are trained on; for several folds alone.
            splits: splits.tsv of another run, to use the same training and validation samples.
            max_bp: maximum sequence length in nucleotides; longer ones are truncated. 'auto': the
                longest of the table (1 or more).
            stratify: keep the proportions of the classes in all parts of the samples, as far as
                classes and groups are large enough; numbers have none.
            num_workers: data loader processes; 'auto': none on a CPU, up to 4 for a GPU (0 to
                1024).
            cpu_threads: threads of the CPU that compute; 'auto': OMP_NUM_THREADS, else one for each
                core (1 or more).
            attn_implementation: attention kernel of PyTorch ('sdpa' is the same as auto).
            check: before the run, measure whether this GPU computes attention correctly; a backend
                that does not is not used.
            target_transform: transform of a numeric target, fitted on training samples and undone
                in every result.
            output_min: lowest predicted value of a number, in its units; lower predictions become
                it.
            output_max: highest predicted value of a number, in its units.
            epochs and the following: of the transformer alone.
            epochs: passes over the training samples (1 or more).
            pretrained_encoder: checkpoint or run folder of `aam pretrain` to start from; it
                determines the sizes of the encoder.
            tree: rooted phylogeny of the ASVs: Newick or .qza. UniFrac is computed from it batch by
                batch.
            rarefy_depth: reads drawn from each sample; shallower samples are left out of training.
                'auto': the depth that keeps 95 % of the samples, at most 5000. 0: all reads (0 or
                more).
            batch_size: samples in a batch, of all processes together. 'auto': the largest batch
                that fits into memory and divides global_batch_size (1 or more).
            lr: highest learning rate, at the end of the warm-up; it then falls to zero as a cosine
                (more than 0 and at most 1000000).
            freeze_base: do not train the pretrained encoder; every ASV is encoded once.
            unifrac_matrix: distance matrix instead of a tree: lsmat/TSV, .qza, ssu HDF5, CSV, or
                .npy (table order).
            unifrac_metric: distance between samples to learn, or Faith PD ('unifrac' is the same as
                unweighted).
            unifrac_alpha: exponent of generalized UniFrac (0 to 1).
            drop_missing_asvs: leave out ASVs that are not in the tree instead of rejecting the
                table.
            root_at_midpoint: root an unrooted tree at the midpoint between its two most distant
                tips; otherwise a tree without a root is rejected.
            rarefy_each_epoch: rarefy the training samples again in each epoch (augmentation);
                validation samples once.
            token_limit: maximum number of ASVs of one sample that the model reads: the most
                abundant ones (1 or more).
            embedding_dim: length of the embedding vectors (1 to 65536).
            attention_heads: attention heads; must divide embedding_dim (1 to 65536).
            attention_layers: transformer layers of the nucleotide encoder and of the sample
                encoder, each (1 to 1000).
            nucleotide_patch: nucleotides that the encoder reads as one token.
            dropout: dropout outside attention (0 to below 1).
            nuc_mask_ratio: fraction of nucleotides that are masked (0 to below 1).
            penalty: weight of the UniFrac loss (0 to 1000000).
            nuc_penalty: weight of the masked-nucleotide loss (0 to 1000000).
            count_penalty: weight of the loss of hidden abundances: the relative abundances of 15 %
                of the ASVs of each sample are hidden from the network, which predicts their
                logarithm. 0: none is (0 to 1000000).
            global_batch_size: samples of an optimizer step, for which the gradients of several
                batches are summed (1 or more).
            gradient_accumulation_steps: batches whose gradients are summed for one optimizer step
                (1 or more).
            even_batches: distribute samples so that all batches have about the same number of
                distinct ASVs: the largest batch needs less memory.
            warmup_fraction: fraction of all optimizer steps over which the learning rate rises (0
                to 1).
            weight_decay: weight decay of the linear layers (0 to 1000000).
            max_grad_norm: gradient norm to clip at; 0: no clipping (0 or more).
            patience: epochs without improvement on the validation samples before training stops; 0:
                no early stopping (0 or more).
            mixed_precision: precision of the matrix products; fp16 with loss scaling. 'auto': bf16
                on a GPU that supports it, else none.
            report_fp32_fallbacks: list the modules that run in fp32 under mixed precision.
            compile_model: compile the nucleotide encoder with torch.compile. 'auto':
                except with ROCm, whose Triton has a fault; 'force': also with ROCm.
            gradient_checkpointing: recompute activations in the backward pass: less memory, a third
                more time.
            asv_chunk: encode the distinct ASVs of a batch in chunks of at most this many, each
                recomputed in the backward pass: memory does not grow with the number of ASVs. 0:
                all at once; 'auto': the largest chunks that fit into memory, 0 if all do (0 or
                more).
            prefetch_factor: batches that each data loader process prepares ahead (1 or more).
            asv_vectors_dir: folder that keeps the vectors of encoded ASVs: commands with the same
                encoder read them from it instead of encoding the ASVs again.
            asv_vectors_dtype: numbers in asv_vectors_dir. float16 halves its size and rounds every
                vector to three digits, also those that are encoded now.
            profile_features: features of the community profile, an input besides the encoder; 0: no
                profile (0 to 65536).
            profile_dropout: dropout of the layers that read the profile (0 to below 1).
            target_penalty: weight of the target's loss (0 to 1000000).
            loss_type: loss of a numeric target, on the transformed scale.
            quantiles: quantiles to predict (more than 0 and less than 1).
            over_penalty: weight of predictions above the true value (0 to 1000000).
            under_penalty: weight of predictions below the true value (0 to 1000000).
            class_weights: weight of classes in the loss. none: equal; balanced: inverse to their
                frequency; or CLASS=WEIGHT,CLASS=WEIGHT, 1 for the others.
            best_metric: validation metric that chooses the best epoch (best.ckpt).
        """
        self.members = members
        self.folds = folds
        self.device = device
        self.seed = seed
        self.sequences = sequences
        self.output_dir = output_dir
        self.overwrite = overwrite
        self.test_size = test_size
        self.splits = splits
        self.max_bp = max_bp
        self.stratify = stratify
        self.num_workers = num_workers
        self.cpu_threads = cpu_threads
        self.attn_implementation = attn_implementation
        self.check = check
        self.target_transform = target_transform
        self.output_min = output_min
        self.output_max = output_max
        self.epochs = epochs
        self.pretrained_encoder = pretrained_encoder
        self.tree = tree
        self.rarefy_depth = rarefy_depth
        self.batch_size = batch_size
        self.lr = lr
        self.freeze_base = freeze_base
        self.unifrac_matrix = unifrac_matrix
        self.unifrac_metric = unifrac_metric
        self.unifrac_alpha = unifrac_alpha
        self.drop_missing_asvs = drop_missing_asvs
        self.root_at_midpoint = root_at_midpoint
        self.rarefy_each_epoch = rarefy_each_epoch
        self.token_limit = token_limit
        self.embedding_dim = embedding_dim
        self.attention_heads = attention_heads
        self.attention_layers = attention_layers
        self.nucleotide_patch = nucleotide_patch
        self.dropout = dropout
        self.nuc_mask_ratio = nuc_mask_ratio
        self.penalty = penalty
        self.nuc_penalty = nuc_penalty
        self.count_penalty = count_penalty
        self.global_batch_size = global_batch_size
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.even_batches = even_batches
        self.warmup_fraction = warmup_fraction
        self.weight_decay = weight_decay
        self.max_grad_norm = max_grad_norm
        self.patience = patience
        self.mixed_precision = mixed_precision
        self.report_fp32_fallbacks = report_fp32_fallbacks
        self.compile_model = compile_model
        self.gradient_checkpointing = gradient_checkpointing
        self.asv_chunk = asv_chunk
        self.prefetch_factor = prefetch_factor
        self.asv_vectors_dir = asv_vectors_dir
        self.asv_vectors_dtype = asv_vectors_dtype
        self.profile_features = profile_features
        self.profile_dropout = profile_dropout
        self.target_penalty = target_penalty
        self.loss_type = loss_type
        self.quantiles = quantiles
        self.over_penalty = over_penalty
        self.under_penalty = under_penalty
        self.class_weights = class_weights
        self.best_metric = best_metric

    def _train(
        self, X: Table, names: Sequence[str], column: str, groups: Any, classifier: bool
    ) -> None:
        """Train on the table and the names of the targets, and load the model."""
        columns = {column: list(names)}
        group_column = str(getattr(groups, "name", None) or "group")
        # The groups would replace the target, whose column has the same name.
        if group_column == column:
            group_column = f"{column} (groups)"
        ids = metadata_ids(as_biom(X).ids())
        if groups is not None:
            labels = np.asarray(aligned(groups, _ids(X), "groups"))
            if labels.shape != (len(ids),):
                remedy = f"give {len(ids)} labels, such as the column of a DataFrame"
                raise UsageError("Invalid groups", shown(groups), remedy)
            columns[group_column] = [str(label) for label in labels]
        records = sequences_in_memory(X, self.sequences)
        # The folder for a tree in memory, and for the checkpoints of a network without another.
        with tempfile.TemporaryDirectory(prefix="aam-") as temporary, as_library():
            folder = Path(temporary)
            output_dir = folder / "run" if self.output_dir is None else self.output_dir
            parameters = self.get_params(deep=False)
            values: dict[str, Any] = {
                spec.field: argument(Train, spec.field, parameters[spec.field])
                for spec in specs(Train)
                if spec.field in parameters
                and spec.field not in ("tree", "sequences", "output_dir")
            } | {
                "tree": tree_file(self.tree, folder),
                "table": Path(X) if isinstance(X, (str, PathLike)) else IN_MEMORY,
                "sequences": records if isinstance(records, Path) else None,
                "metadata": IN_MEMORY,
                "metadata_column": column,
                "classifier": classifier,
                "group_column": None if groups is None else group_column,
                "output_dir": path_argument("output_dir", output_dir, "None"),
            }
            options = from_plain(Train, _nested(Train, values))
            require_consistent(options)
            options = resolve(options)
            # A kernel and a forest read no phylogeny, so no ASV is refused for it.
            phylogeny = options.phylogeny if options.uses_network else None
            length = sequence_length(options)
            study = make_study(table_in_memory(X), records, options.input, phylogeny, length)
            labelled = label_study(options, study, Metadata(ids, columns), options.split)
            # A training seeds PyTorch; the random numbers of the caller stay as they are.
            with torch.random.fork_rng():
                if self.output_dir is None:
                    self.model_ = Model(IN_MEMORY, options.device, fit(options, labelled))
                    return
                run(options, labelled)
            self.model_ = load(options.run.output_dir, options.device.device)

    def _predict(self, X: Table) -> pd.DataFrame:
        """Predict a table with the trained model."""
        check_is_fitted(self)
        if is_array(X):
            X = self._checked_array(X)
        return self.model_.predict(X, self.sequences)

    def _checked_array(self, X: Any) -> Any:
        """Check an array, whose columns have no names, as scikit-learn does."""
        X = check_array(X, accept_sparse="csr")
        check_non_negative(X, type(self).__name__)
        # `check_estimator` of scikit-learn compares the type and the text of this error.
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input"
            )
        return X

    def _checked(self, X: Table, y: Any, numeric: bool) -> tuple[Table, npt.NDArray[Any]]:
        """Check table and targets as scikit-learn does, and set the attributes of the features.

        Targets with sample ids are put in the order of the table.
        """
        y = aligned(y, _ids(X), "y")
        if is_array(X):
            X, y = check_X_y(X, y, accept_sparse="csr", y_numeric=numeric, ensure_min_samples=2)
            check_non_negative(X, type(self).__name__)
            counts = X
            # An earlier fit to a table with ids has set it.
            if hasattr(self, "feature_names_in_"):
                delattr(self, "feature_names_in_")
        else:
            read = as_biom(X)
            counts = read.matrix_data.T
            self.feature_names_in_ = np.asarray(read.ids("observation"), dtype=object)
            _, y = check_X_y(
                counts, y, accept_sparse="csr", y_numeric=numeric, ensure_min_samples=2
            )
        self.n_features_in_ = counts.shape[1]
        return X, y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        return tags


class AAMRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Regressor of a number from a table of reads, with the options of `aam train`.

    The table is a `biom.Table`, a DataFrame (samples x features), AnnData or an array. The DNA of
    its features is `sequences`, unless their ids are the sequences.

    >>> from aam import AAMRegressor
    >>> model = AAMRegressor(epochs=20).fit(table, ages)  # doctest: +SKIP
    >>> model.predict(new_table)  # doctest: +SKIP
    """

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMRegressor:
        """Train on the samples of a table.

        Args:
            X: N samples; see `aam.api.tables.Table`.
            y: N numbers. A Series is read by its index, the sample ids, where the table has ids.
            groups: N labels; samples of a group are on the same side of the split into training
                and validation samples. A Series is read as `y`.

        Returns:
            The estimator.

        Raises:
            ValueError: table and targets do not fit together, or have NaN.
            UsageError: a parameter is not of the type or range of its option, or `groups` are not
                N labels.
            DataError: `y` or `groups` have other sample ids than the table.
            AamError: see `aam train`.
        """
        X, values = self._checked(X, y, numeric=True)
        # Targets pass as the text of metadata: `repr` keeps all digits of a float64.
        names = [repr(float(value)) for value in values]
        column = str(getattr(y, "name", None) or "target")
        self._train(X, names, column, groups, classifier=False)
        return self

    def predict(self, X: Table) -> npt.NDArray[np.float64]:
        """Return the predicted numbers, float64 [N], in the units of the targets.

        Args:
            X: N samples; features that the training table lacks are read by their DNA.

        Raises:
            NotFittedError: `fit` was not called.
            DataError: not a table of reads, or features without DNA.
        """
        predicted_N: npt.NDArray[np.float64] = self._predict(X)["predicted"].to_numpy(np.float64)
        return predicted_N


class AAMClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Classifier of samples from a table of reads, with the options of `aam train`.

    Attributes:
        classes_: the class labels, sorted.
    """

    def fit(self, X: Table, y: Any, groups: Any = None) -> AAMClassifier:
        """Train on the samples of a table.

        Args:
            X: N samples; see `aam.api.tables.Table`.
            y: N class labels; a Series is read as in `AAMRegressor.fit`.
            groups: N labels, see `AAMRegressor.fit`.

        Returns:
            The estimator.

        Raises:
            ValueError: table and labels do not fit together, or the labels are numbers of a
                regression.
            DataError: see `AAMRegressor.fit`; a label means a missing value, such as "NA".
            AamError: see `aam train`.
        """
        X, labels = self._checked(X, y, numeric=False)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"A classifier needs two classes or more, y has {len(self.classes_)}")
        names = _class_names(self.classes_)
        self._train(
            X,
            [names[code] for code in codes],
            str(getattr(y, "name", None) or "target"),
            groups,
            classifier=True,
        )
        self._names = names
        return self

    def predict_proba(self, X: Table) -> npt.NDArray[np.float64]:
        """Return the probability of each class, float64 [N, C], in the order of `classes_`."""
        found = self._predict(X)
        columns = [f"p_{name}" for name in self._names]
        probabilities_NC: npt.NDArray[np.float64] = found[columns].to_numpy(np.float64)
        return probabilities_NC

    def predict(self, X: Table) -> npt.NDArray[Any]:
        """Return the most probable class of each sample."""
        probabilities_NC = self.predict_proba(X)
        found: npt.NDArray[Any] = self.classes_[probabilities_NC.argmax(axis=1)]
        return found


def _ids(X: Table) -> list[str] | None:
    """Return the sample ids of a table; None of an array, whose samples have none."""
    return None if is_array(X) else list(as_biom(X).ids())


def _class_names(classes: npt.NDArray[Any]) -> list[str]:
    """Return the class labels as metadata has them.

    Raises:
        DataError: a label means a missing value, or two labels are the same text.
    """
    texts = [str(label) for label in classes]
    names: list[str] = Metadata(texts, {"class": texts}).values("class", texts).tolist()
    wrong = [
        text
        for text, name in zip(texts, names, strict=True)
        if names.count(name) > 1 or not name or text != text.strip()
    ]
    if wrong:
        raise DataError(
            "Class labels that metadata cannot hold",
            first_few(wrong),
            "give each class a name that is no missing value and has no blank at its ends",
        )
    return names


def _nested(options_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrange option values by the groups of a command."""
    return {
        field.name: _nested(field.type, values)  # type: ignore[arg-type]
        if dataclasses.is_dataclass(field.type)
        else values[field.name]
        for field in dataclasses.fields(options_class)
        if dataclasses.is_dataclass(field.type) or field.name in values
    }
