"""Images: which are there, what they say of themselves, and how they are made, checked and removed.

`built` and `sif` serve every start and import next to nothing; the rest is for `aam-launch images`.
"""

from launcher.images.built import assumed, built, measured
from launcher.images.sif import check_sif, labels_of
from launcher.plan.choose import Built

__all__ = ["Built", "assumed", "built", "check_sif", "labels_of", "measured"]
