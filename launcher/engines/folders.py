"""Creation of private and output folders before a plan's program starts."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from aam.contract.errors import CannotCreate, NotPermitted
from launcher.plan.plan import Plan


def make_folders(plan: Plan) -> None:
    """Make the private and the output folders of a plan, which a container finds as mounts."""
    make_private(plan.folders)
    for folder in plan.outputs:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot(folder, error) from error


def make_private(folders: Sequence[str]) -> None:
    """Make folders that only this user may enter, the outermost first.

    They lie in a scratch folder where others may write, so each folder has to be this user's and
    closed to other writers before anything inside it is made or used. The scratch folder itself has
    to keep others from renaming what is not theirs (a sticky bit where everybody may write).
    """
    for number, folder in enumerate(folders):
        try:
            if number == 0:
                scratch = Path(os.path.realpath(os.path.dirname(folder)))
                scratch.mkdir(parents=True, exist_ok=True)
                for place in (scratch, *scratch.parents):
                    _require_protected(place)
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise _cannot(folder, error) from error
        facts = os.lstat(folder)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            raise _refused(f"'{folder}' is not a folder of yours")
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(facts.st_mode)
            raise _refused(f"others may write to '{folder}' (mode {mode:o})")


def _require_protected(place: Path) -> None:
    """Check that no other user may rename what this user makes in a folder."""
    facts, me = place.stat(), os.geteuid()
    if facts.st_uid not in (0, me):
        raise _refused(f"another user owns '{place}'")
    writable = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writable == stat.S_IWGRP and facts.st_uid == me:
        # Many systems give each user a group of the same name.
        with suppress(KeyError):
            if grp.getgrgid(facts.st_gid).gr_name == pwd.getpwuid(me).pw_name:
                return
    if writable and not facts.st_mode & stat.S_ISVTX:
        raise _refused(f"others may rename what lies in '{place}' (it has no sticky bit)")


def _refused(evidence: str) -> NotPermitted:
    remedy = "remove it or choose another --scratch"
    return NotPermitted("The private folder of the job is not safe to use", evidence, remedy)


def _cannot(folder: str, error: OSError) -> CannotCreate:
    evidence = f"'{folder}', {error.strerror}"
    return CannotCreate("A folder cannot be made", evidence, "choose another place")
