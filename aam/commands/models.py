"""`aam predict`, `embed`, `importance` and `export`: the commands that apply a trained model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from aam.arrays import Rows
from aam.console import info
from aam.contract import run_files
from aam.contract.errors import DataError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.use import Embed, Export, ImportanceOptions, Predict
from aam.contract.options.groups import DeviceOptions
from aam.data.metadata import groups, listed_columns, read_metadata
from aam.data.ordination import principal_coordinates, write_ordination
from aam.data.study import load_study
from aam.data.taxonomy import read_taxonomy
from aam.inference.output_tables import InferenceSettings, rank_share, write_embeddings, write_table
from aam.members.explanations import show_explanations
from aam.members.importance import (
    attention_table,
    clade_table,
    importance_table,
    rank_by_permutation,
)
from aam.members.model_file import read, read_trained
from aam.members.new_samples import read_covariates, select_as_trained
from aam.members.prediction_tables import join_targets, predict_table
from aam.report.asvs import draw_attention
from aam.report.figures import ordination_figure
from aam.report.run import as_colour

EMBEDDING_FILES = ("embeddings.tsv", "ordination.txt", "pcoa.png")
AXES = 10


def run_predict(options: Predict) -> dict[str, object]:
    """Predict the target, or each target, of every sample; return facts for the run record."""
    for path in (options.output, options.explain):
        if path is not None:
            refuse_existing(path, options.overwrite)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    tables: dict[str, pd.DataFrame] = {}
    explanations: list[pd.DataFrame] = []
    facts: dict[str, object] = {}
    with rank_share(options.scale, options.device) as share:
        for model in run_files.target_folders(options.model) or [options.model]:
            loaded = read_trained(model, options.device)
            arguments = replace(options, model=model), share, taxa
            table, comparison, explained = predict_table(loaded, *arguments)
            tables[loaded.facts.column] = table
            if explained is not None:
                explanations.append(explained.assign(target=loaded.facts.column))
            for member in loaded.models.values():
                facts |= member.facts
            comparison.show()
        table = join_targets(tables) if len(tables) > 1 else next(iter(tables.values()))
        if share.ranks.is_main:
            write_table(options.output, table)
            columns = ", ".join(f"'{column}'" for column in tables)
            info(f"Predictions of {columns} for {len(table)} samples: {options.output}")
            if options.explain is not None:
                rows = pd.concat(explanations, ignore_index=True)
                write_table(options.explain, rows)
                show_explanations(rows)
                info(f"Explanations of {len(table)} samples: {options.explain}")
    return facts


def run_embed(options: Embed) -> dict[str, object]:
    """Write embeddings.tsv, ordination.txt and pcoa.png; return facts for the run record.

    Of a cross-validated run it is the embedding of the first fold.
    """
    # PyTorch takes 2 CPU-seconds to import, which kernel and forest do without.
    from aam.inference.outputs import build_networks, embed, warn_of_shallow
    from aam.inference.stored_networks import read_networks
    from aam.numerics.device import choose_device, print_device

    folder = options.output_dir
    for name in EMBEDDING_FILES:
        refuse_existing(folder / name, options.overwrite)
    with rank_share(options.scale, options.device) as share:
        if share.ranks.world_size == 1:  # a process group prints the device itself
            print_device(choose_device(options.device))
        # One network: embeddings of different networks have no common axes.
        network = build_networks(read_networks(options.model)[:1], options.device)[0]
        study = load_study(options.input, max_bp=network.config.shape.max_bp)
        warn_of_shallow(study, network.config)
        settings = InferenceSettings(options.batch_size, vectors=options.vectors)
        part = share.take(study, options.batch_size)
        embeddings_ND = np.concatenate(share.gather(embed(network, part, settings)))
    if not share.ranks.is_main:
        return {}
    ids = study.table.sample_ids
    coords, explained = principal_coordinates(embeddings_ND, AXES)
    colour = None
    if options.metadata is not None and options.color_by is not None:
        metadata = read_metadata(options.metadata)
        texts = metadata.values(options.color_by, ids).tolist()
        named = options.color_by in listed_columns(options.categories, metadata)
        colour = as_colour(options.color_by, texts, named)
    write_embeddings(folder / "embeddings.tsv", ids, [embeddings_ND])
    try:
        write_ordination(folder / "ordination.txt", ids, coords, explained)
    except DataError as error:  # ids that the format cannot hold
        info(str(error))
    figure = ordination_figure(coords, explained.tolist(), "Samples by their embedding", colour)
    with atomic_write(folder / "pcoa.png") as temporary:
        figure.savefig(temporary, dpi=150)
    for name in EMBEDDING_FILES:
        run_files.add(folder, name)
    info(f"{len(ids)} samples: {', '.join(EMBEDDING_FILES)} in {folder}")
    return {"attention": network.attention}


def run_importance(options: ImportanceOptions) -> None:
    """Write the importance of every ASV of a table, or the attention to the ASVs of a sample."""
    picture = options.output.with_suffix(".png") if options.attention is not None else None
    # Before the model is read: a refusal after the computation would cost minutes.
    for path in (options.output, options.clades, picture):
        if path is not None:
            refuse_existing(path, options.overwrite)
    loaded = read_trained(options.model, options.device)
    taxa = None if options.taxonomy is None else read_taxonomy(options.taxonomy)
    study = load_study(options.input, max_bp=loaded.max_bp).sorted_by_id()
    study = select_as_trained(study, loaded.facts.options, options.metadata)
    covariates = read_covariates(loaded.encoder, options.metadata, study.table.sample_ids)
    if options.attention is not None and picture is not None:
        sample = options.attention
        table, mixing_UU = attention_table(loaded, study, sample, taxa, covariates)
        write_table(options.output, table)
        with atomic_write(picture) as temporary:
            draw_attention(table, mixing_UU, sample).savefig(temporary, format="png")
        info(f"Attention to {len(table)} ASVs of {sample}: {options.output}, {picture}")
        return
    table = importance_table(loaded, study, taxa, covariates)
    if options.method == "permutation":
        groups_N: Rows | None = None
        if options.group_column is not None and options.metadata is not None:
            metadata = read_metadata(options.metadata)
            names = groups(metadata, options.group_column, study.table.sample_ids)
            groups_N = np.unique(names, return_inverse=True)[1].astype(np.int64)
        table = rank_by_permutation(table, loaded, study, covariates, options.first, groups_N)
    write_table(options.output, table)
    if options.clades is not None:
        write_table(options.clades, clade_table(table))
        info(f"Importance of taxa: {options.clades}")
    samples = len(study.table.sample_ids)
    info(f"Importance of {len(table)} ASVs in {samples} samples: {options.output}")


def run_export(options: Export) -> dict[str, object]:
    """Write an ONNX file for each network of the model."""
    # ONNX Runtime is compared with PyTorch on the CPU.
    folder, model = options.output_dir, read(options.model, DeviceOptions(device="cpu"))
    encoders = [encoder for member in model.models.values() for encoder in member.asv_encoders()]
    if not encoders:
        evidence = f"'{options.model}' has {', '.join(model.models)}"
        remedy = "export a model with the member transformer, or a pretrained encoder"
        raise DataError("Nothing that can be exported", evidence, remedy)
    number = len(encoders)
    names = [f"asv_encoder-fold-{fold}" for fold in range(1, number + 1)]
    paths = [folder / f"{name}.onnx" for name in (names if number > 1 else ["asv_encoder"])]
    for path in paths:
        refuse_existing(path, options.overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    # PyTorch takes 2 CPU-seconds to import, which a refusal does without.
    from aam.members.export import export

    differences: dict[str, object] = {}
    for path, encoder in zip(paths, encoders, strict=True):
        differences[path.name] = difference = export(encoder, model.max_bp, path)
        info(f"{path}: ONNX Runtime differs from PyTorch by {difference:.1g} of the largest output")
    return {"differences": differences}
