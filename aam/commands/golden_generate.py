"""`aam golden generate`: compute the golden case here and save it."""

from __future__ import annotations

from aam.console import info
from aam.contract.errors import NotFinite
from aam.contract.options.commands.stack import GoldenGenerate
from aam.golden import case
from aam.golden.folder import Golden, Stack, refuse, write
from aam.golden.measure import device_of, first_not_finite, measure


def run(options: GoldenGenerate) -> None:
    """Write the golden folder.

    Raises:
        UsageError, Unavailable: a device or precision that is not there.
        CannotCreate: the folder holds a golden run, or cannot be written to.
        NotFinite: this stack computes values that are not finite.
    """
    refuse(options.golden_dir, options.overwrite)
    device, precision, backends = device_of(options.stack)
    stack = Stack.here(device, precision, (backends.plain.name, backends.masked.name))
    weights, batches = case.weights(), {name: case.batch(name) for name in case.CASES}
    measured = measure(weights, batches, device, backends, precision)
    wrong = first_not_finite(measured)
    if wrong is not None:
        raise NotFinite("This stack computes values that are not finite", wrong, "run `aam check`")
    write(options.golden_dir, Golden(stack, weights, batches, measured))
    info(f"{stack}: {options.golden_dir}")
