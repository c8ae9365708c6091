"""Images: inventory, labels, build, lock, verification and registry.

`built` serves every start; the rest is for `aam-launch images`.
"""

from launcher.engines.sif_file import check_sif, labels_of
from launcher.images.inventory import assumed, built, measured
from launcher.plan.inputs import BuiltImage

__all__ = ["BuiltImage", "assumed", "built", "check_sif", "labels_of", "measured"]
