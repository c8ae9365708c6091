"""`aam embed`: the embedding of every sample, and a PCoA plot."""

from __future__ import annotations

import numpy as np

from aam.console import info
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.use import Embed
from aam.data.metadata import read_metadata
from aam.data.ordination import principal_coordinates, write_ordination
from aam.inference.outputs import build_networks, embed, load_samples
from aam.inference.stored_networks import read_networks
from aam.inference.tables import InferenceSettings, rank_share, write_embeddings
from aam.numerics.device import choose_device, print_device
from aam.report.run import as_colour
from aam.report.sections import ordination_figure

FILES = ("embeddings.tsv", "ordination.txt", "pcoa.png")
AXES = 10


def run(options: Embed) -> dict[str, object]:
    """Write embeddings.tsv, ordination.txt and pcoa.png; return facts for the run record.

    Of a cross-validated run it is the embedding of the first fold.
    """
    folder = options.output_dir
    for name in FILES:
        refuse_existing(folder / name, options.overwrite)
    with rank_share(options.scale, options.device) as share:
        if share.ranks.world_size == 1:  # a process group prints the device itself
            print_device(choose_device(options.device))
        # One network: embeddings of different networks have no common axes.
        network = build_networks(read_networks(options.model)[:1], options.device)[0]
        study = load_samples(options.input, network.config)
        settings = InferenceSettings(options.batch_size, vectors=options.vectors)
        part = share.take(study, options.batch_size)
        embeddings_ND = np.concatenate(share.gather(embed(network, part, settings)))
    if not share.ranks.is_main:
        return {}
    ids = study.table.sample_ids
    coords, explained = principal_coordinates(embeddings_ND, AXES)
    colour = None
    if options.metadata is not None and options.color_by is not None:
        texts = read_metadata(options.metadata).values(options.color_by, ids).tolist()
        colour = as_colour(options.color_by, texts, options.color_by in options.categories)
    write_embeddings(folder / "embeddings.tsv", ids, [embeddings_ND])
    write_ordination(folder / "ordination.txt", ids, coords, explained)
    figure = ordination_figure(coords, explained.tolist(), "Samples by their embedding", colour)
    with atomic_write(folder / "pcoa.png") as temporary:
        figure.savefig(temporary, dpi=150)
    info(f"{len(ids)} samples: {', '.join(FILES)} in {folder}")
    return {"attention": network.attention}
