"""`aam golden`: compute the golden case, and save it or compare it with a golden folder."""

from __future__ import annotations

import json

from aam.console import info
from aam.contract.errors import NotFinite
from aam.contract.files import refuse_existing
from aam.contract.options.commands.stack import GoldenCompare, GoldenGenerate
from aam.contract.options.device import DeviceOptions
from aam.golden import (
    FILE,
    SAMPLES,
    SHAPE,
    Stack,
    as_plain,
    batch,
    compare,
    first_difference,
    first_not_finite,
    lines,
    measure,
    read,
    weights,
    write,
)
from aam.numerics.backends import TORCH_POLICY, choose_attention
from aam.numerics.device import arch_of, choose_device, choose_precision


def run(options: GoldenGenerate | GoldenCompare) -> int:
    """Save the golden case, or compare it with a golden folder."""
    folder, stack = options.golden_dir, options.stack
    if isinstance(options, GoldenGenerate):
        refuse_existing(folder / FILE, options.overwrite)
    else:
        there, golden = read(folder)
    # Without the check: a wrong backend is kept, since the comparison is made to find it.
    requested = DeviceOptions(
        device=stack.device, attn_implementation=stack.attn_implementation, check=False
    )
    device = choose_device(requested)
    precision = choose_precision(stack.mixed_precision, arch_of(device))
    backends = choose_attention(requested, device, SHAPE, TORCH_POLICY, precision).backends
    here = Stack.here(device, precision, (backends.plain.name, backends.masked.name))
    batches = {name: batch(name) for name in SAMPLES}
    measured = measure(weights(), batches, device, backends, precision)
    if isinstance(options, GoldenGenerate):
        # A reference with NaN would agree with nothing, on any stack.
        if wrong := first_not_finite(measured.tensors):
            raise NotFinite(
                "This stack computes values that are not finite", wrong, "run `aam check`"
            )
        write(folder, here, measured)
        info(f"{here}: {folder}")
        return 0
    rows = compare(golden, measured, (there.precision, precision))
    if options.json:
        print(json.dumps(as_plain(rows, there, here), indent=2))
    else:
        print("\n".join(lines(rows, there, here)))
    return 0 if first_difference(rows) is None else 1
