"""The launcher `aam-launch`; of `aam` it imports `aam.contract` alone, and it needs no torch."""
