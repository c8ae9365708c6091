"""Free space to build an image, checked before anything is fetched."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.engines.base import GIB, Need
from launcher.errors import CannotCreate


def require(needs: Sequence[Need]) -> None:
    """Check that there is room, adding up what lies on one file system.

    Raises:
        CannotCreate: there is not, or a folder is not there, with the variable to set.
    """
    taken: dict[int, int] = {}
    for need in needs:
        place = need.folder
        while not place.exists() and place != place.parent:
            place = place.parent
        facts = os.statvfs(place)
        device = os.stat(place).st_dev
        taken[device] = taken.get(device, 0) + need.size
        free = facts.f_bavail * facts.f_frsize
        if free < taken[device]:
            evidence = f"{free / GIB:.1f} GiB free at '{need.folder}' ({need.what}), " \
                       f"{taken[device] / GIB:.1f} needed"  # fmt: skip
            raise CannotCreate("No room to build", evidence, need.remedy)
