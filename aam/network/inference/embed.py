"""Command `aam embed`: embeddings of samples by a network, and their ordination."""

from __future__ import annotations

import numpy as np

from aam.console import info
from aam.contract import run_files
from aam.contract.errors import DataError
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.use import Embed
from aam.data.distances import principal_coordinates, write_ordination
from aam.data.metadata import read_metadata
from aam.data.study import load_study
from aam.members.output_tables import InferenceSettings, rank_share
from aam.network.inference.outputs import build_networks, write_embeddings
from aam.network.inference.stored_networks import read_networks
from aam.network.numerics.device import choose_device, print_device
from aam.report.figures import ordination_figure
from aam.report.run import as_colour

EMBEDDING_FILES = ("embeddings.tsv", "ordination.txt", "pcoa.png")
AXES = 10


def run_embed(options: Embed) -> dict[str, object]:
    """Run `aam embed` with the network of the first fold; return facts for the run record."""
    folder = options.output_dir
    for name in EMBEDDING_FILES:
        refuse_existing(folder / name, options.overwrite)
    with rank_share(options.scale, options.device) as share:
        if share.ranks.world_size == 1:  # a process group prints the device itself
            print_device(choose_device(options.device))
        # One network, because embeddings of different networks have no common axes.
        network = build_networks(read_networks(options.model)[:1], options.device)[0]
        study = load_study(options.input, max_bp=network.config.shape.max_bp)
        network.warn_of_shallow(study)
        settings = InferenceSettings(options.batch_size, vectors=options.vectors)
        shard = share.take(study, options.batch_size)
        embeddings_ND = np.concatenate(share.gather(network.embed(shard, settings)))
    if not share.ranks.is_main:
        return {}
    ids = study.table.sample_ids
    coords, explained = principal_coordinates(embeddings_ND, AXES)
    colour = None
    if options.metadata is not None and options.color_by is not None:
        metadata = read_metadata(options.metadata)
        texts = metadata.values(options.color_by, ids).tolist()
        is_category = options.color_by in metadata.listed(options.categories)
        colour = as_colour(options.color_by, texts, is_category)
    write_embeddings(folder / "embeddings.tsv", ids, [embeddings_ND])
    try:
        write_ordination(folder / "ordination.txt", ids, coords, explained)
    except DataError as error:  # the format cannot hold these ids
        info(str(error))
    figure = ordination_figure(coords, explained.tolist(), "Samples by their embedding", colour)
    with atomic_write(folder / "pcoa.png") as temporary:
        figure.savefig(temporary, dpi=150)
    for name in EMBEDDING_FILES:
        run_files.add(folder, name)
    info(f"{len(ids)} samples: {', '.join(EMBEDDING_FILES)} in {folder}")
    return {"attention": network.attention}
