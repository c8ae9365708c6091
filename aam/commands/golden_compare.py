"""`aam golden compare`: compute the golden case here and compare it with a golden folder."""

from __future__ import annotations

import json

from aam.contract.options.commands.stack import GoldenCompare
from aam.golden import case
from aam.golden.compare import as_plain, compare, first_difference, lines
from aam.golden.folder import Stack, read
from aam.golden.measure import device_of, measure


def run(options: GoldenCompare) -> int:
    """Print the comparison; returns 1 if something differs by more than rounding.

    Raises:
        MissingInput: there is no golden folder.
        DataError: it is damaged, of another version or of another model.
        UsageError, Unavailable: a device or precision that is not there.
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
