"""`aam golden`: compute the golden case, and save it or compare it with a golden folder."""

from __future__ import annotations

import json

from aam.console import info
from aam.contract.errors import NotFinite
from aam.contract.options.commands.stack import GoldenCompare, GoldenGenerate
from aam.golden import case
from aam.golden.compare import as_plain, compare, first_difference, lines
from aam.golden.folder import Golden, Stack, read, refuse, write
from aam.golden.measure import device_of, first_not_finite, measure


def run(options: GoldenGenerate | GoldenCompare) -> int:
    """Save the golden case, or compare it with a golden folder.

    Args:
        options: folder, device and precision of `aam golden generate` or `aam golden compare`.

    Returns:
        The exit status: 1 if a stage differs by more than rounding, else 0.

    Raises:
        UsageError, Unavailable: a device or precision that is not there.
        AamError: see `_generate` and `_compare`.
    """
    return _generate(options) if isinstance(options, GoldenGenerate) else _compare(options)


def _generate(options: GoldenGenerate) -> int:
    """Write the golden folder.

    Raises:
        CannotCreate: the folder holds a golden run, or cannot be written to.
        NotFinite: this stack computes values that are not finite.
    """
    refuse(options.golden_dir, options.overwrite)
    device, precision, backends = device_of(options.stack)
    stack = Stack.here(device, precision, (backends.plain.name, backends.masked.name))
    weights, batches = case.weights(), {name: case.batch(name) for name in case.CASES}
    measured = measure(weights, batches, device, backends, precision)
    wrong = first_not_finite(measured)
    # A reference with NaN would agree with nothing, on any stack.
    if wrong is not None:
        raise NotFinite("This stack computes values that are not finite", wrong, "run `aam check`")
    write(options.golden_dir, Golden(stack, weights, batches, measured))
    info(f"{stack}: {options.golden_dir}")
    return 0


def _compare(options: GoldenCompare) -> int:
    """Print the comparison.

    Raises:
        MissingInput: there is no golden folder.
        DataError: it is damaged, of another version or of another model.
    """
    golden = read(options.golden_dir)
    device, precision, backends = device_of(options.stack)
    here = Stack.here(device, precision, (backends.plain.name, backends.masked.name))
    found = measure(golden.weights, golden.batches, device, backends, precision)
    precisions = (golden.stack.precision, precision)
    rows = compare(golden.measured, found, precisions, case.network())
    if options.json:
        print(json.dumps(as_plain(rows, golden.stack, here), indent=2))
    else:
        print("\n".join(lines(rows, golden.stack, here)))
    return 0 if first_difference(rows) is None else 1
