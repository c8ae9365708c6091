"""`aam embed`: the embedding of every sample, and a PCoA plot."""

from __future__ import annotations

from aam.console import info
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.use import Embed
from aam.contract.shards import file_of
from aam.data.metadata import read_metadata
from aam.data.ordination import principal_coordinates, write_ordination
from aam.data.shards import facts_of, finished, take_shard
from aam.inference.outputs import build_networks, embed, load_samples
from aam.inference.stored_networks import read_networks
from aam.inference.tables import InferenceSettings, write_embeddings
from aam.numerics.device import choose_device, print_device
from aam.report.content import as_colour
from aam.report.sections import ordination_figure

FILES = ("embeddings.tsv", "ordination.txt", "pcoa.png")
AXES = 10


def run(options: Embed) -> dict[str, object]:
    """Write embeddings.tsv, ordination.txt and pcoa.png.

    Of a cross-validated run it is the embedding of the first fold. Of a shard only the embeddings
    are written.

    Args:
        options: model, table and output folder of `aam embed`.

    Returns:
        Facts for the run record: attention backends and, of a shard, its checksum and samples.

    Raises:
        AamError: see the readers; CannotCreate if files exist already.
    """
    folder = options.output_dir
    shard = file_of(options)
    if shard is not None and (facts := finished("embed", options)) is not None:
        return facts
    for name in FILES if shard is None else ():
        refuse_existing(folder / name, options.overwrite)
    print_device(choose_device(options.device))
    # One network: embeddings of different networks have no common axes.
    network = build_networks(read_networks(options.model)[:1], options.device)[0]
    study = load_samples(options.input, network.config)
    study = take_shard(study, options)
    settings = InferenceSettings(options.batch_size, vectors=options.vectors)
    embeddings_ND = embed(network, study, settings)
    ids = study.table.sample_ids
    if shard is not None:
        write_embeddings(shard, ids, [embeddings_ND])
        info(f"Embeddings of {len(ids)} samples: {shard}")
        return {"attention": network.attention, **facts_of(shard, len(ids))}
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
