"""Make the folders that a plan needs before its program starts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from launcher.errors import CannotCreate, NotPermitted


def make_private(folders: Iterable[str]) -> None:
    """Make folders that only this user may enter; they lie where others can write too.

    Raises:
        NotPermitted: there is a link or somebody else's folder in the way.
        CannotCreate: it cannot be made.
    """
    for folder in folders:
        for place in (os.path.dirname(folder), folder):
            try:
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.mkdir(place, 0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise _cannot(place, error) from error
        facts = os.lstat(folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            evidence = f"'{folder}' is not a folder of yours"
            raise NotPermitted("Something is in the way", evidence, "choose another --scratch")


def make_shared(folders: Iterable[str]) -> None:
    """Make output folders and their parents.

    Raises:
        CannotCreate: one cannot be made.
    """
    for folder in folders:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot(folder, error) from error


def _cannot(folder: str, error: OSError) -> CannotCreate:
    evidence = f"'{folder}', {error.strerror}"
    return CannotCreate("A folder cannot be made", evidence, "choose another place")
