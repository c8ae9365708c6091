"""`aam golden`: the outputs of a fixed network, saved or compared with those of another stack."""

from __future__ import annotations

from aam.console import info
from aam.contract.errors import NotFinite
from aam.contract.files import dump_json, refuse_existing
from aam.contract.options.commands.measure import GoldenCompare, GoldenGenerate
from aam.contract.options.groups import DeviceOptions
from aam.network.numerics.backends import (
    TORCH_POLICY,
    choose_attention,
)
from aam.network.numerics.device import arch_of, choose_device, choose_precision


def run_golden(options: GoldenGenerate | GoldenCompare) -> int:
    """Save the golden case, or compare it with a golden folder."""
    # scikit-learn takes 2 CPU-seconds to import, which `aam check` does without.
    from aam.stack import golden

    folder, stack = options.golden_dir, options.stack
    if isinstance(options, GoldenGenerate):
        refuse_existing(folder / golden.FILE, options.overwrite)
    else:
        there, reference = golden.read(folder)
    # Without the check: a wrong backend is kept, since the comparison is made to find it.
    requested = DeviceOptions(
        device=stack.device, attn_implementation=stack.attn_implementation, check=False
    )
    device = choose_device(requested)
    precision = choose_precision(stack.mixed_precision, arch_of(device))
    backends = choose_attention(requested, device, golden.SHAPE, TORCH_POLICY, precision).backends
    here = golden.Stack.here(device, precision, (backends.plain.name, backends.masked.name))
    batches = {name: golden.batch(name) for name in golden.SAMPLES}
    measured = golden.measure(golden.weights(), batches, device, backends, precision)
    if isinstance(options, GoldenGenerate):
        # A reference with NaN would agree with nothing, on any stack.
        for name, tensor in measured.tensors.items():
            if not tensor.isfinite().all():
                cause = "This stack computes values that are not finite"
                raise NotFinite(cause, name, "run `aam check`")
        golden.write(folder, here, measured)
        info(f"{here}: {folder}")
        return 0
    rows = golden.compare(reference, measured, (there.precision, precision))
    if options.json:
        print(dump_json(golden.as_plain(rows, there, here), indent=2))
    else:
        print("\n".join(golden.lines(rows, there, here)))
    return 0 if golden.first_difference(rows) is None else 1
