"""`aam example`: the simulated study of the tutorial, from the files of the installation."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.resources import files

from aam.console import info
from aam.contract.files import atomic_write, refuse_existing
from aam.contract.options.commands.studies import Example

FILES = ("table.biom", "tree.nwk", "metadata.tsv", "taxonomy.tsv", "README.txt")


def run(options: Example) -> None:
    """Write all files of the study, or none.

    Raises:
        CannotCreate: a file exists and --overwrite is not given, or the folder cannot be written.
    """
    places = {name: options.output_dir / name for name in FILES}
    for place in places.values():
        refuse_existing(place, options.overwrite)
    packaged = files("aam.data").joinpath("example")
    # Each file gets its name when the block ends: an error before that leaves none of them.
    with ExitStack() as stack:
        for name, place in places.items():
            temporary = stack.enter_context(atomic_write(place))
            temporary.write_bytes(packaged.joinpath(name).read_bytes())
    info(f"Simulated study: {', '.join(FILES)} in {options.output_dir}")
    table, metadata = options.output_dir / "table.biom", options.output_dir / "metadata.tsv"
    info(f"Next: aam inspect {table} --metadata {metadata} --metadata-column ph")
