"""Errors that a user can cause, with their exit status (sysexits.h), for both programs.

A message is one sentence: cause, evidence (ids, numbers, files) and remedy. Any other exception is
a bug and keeps its traceback.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

SHOWN_IDS = 5
_SHOWN_CHARACTERS = 100  # most characters of listed ids, enough for two sequences


_LONGEST = 600
"""Most characters of cause, evidence and remedy each; the middle of a longer text is left out."""

_NEAR = 0.7  # least similarity of two near spellings
_WORD = re.compile(r"[-. ]")  # separator of the words of a name

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line ends, marks of text direction."""


class Problem:
    """Message of an error, a warning or a note; the class has the default `severity`."""

    severity = "note"

    def __init__(
        self, cause: str, evidence: str = "", remedy: str = "", severity: str = ""
    ) -> None:
        self.cause, self.evidence, self.remedy = cause, evidence, remedy
        self.severity = severity or type(self).severity

    @property
    def brief(self) -> str:
        """Cause and evidence on one line."""
        cause, evidence = printable(self.cause), printable(self.evidence)
        return f"{cause}: {evidence}" if evidence else cause

    def __str__(self) -> str:
        remedy = printable(self.remedy)
        message = f"{self.brief}; {remedy}" if remedy else self.brief
        return message if message.endswith("?") else f"{message}."


class AamError(Problem, Exception):
    """Base class of all errors that a user, an input or a host can cause."""

    severity = "error"
    status = 70


class UsageError(AamError):
    """Invalid or contradictory options (EX_USAGE)."""

    status = 64


class DataError(AamError):
    """Invalid content of an input (EX_DATAERR)."""

    status = 65


class MissingInput(AamError):
    """Input file that does not exist or cannot be read (EX_NOINPUT)."""

    status = 66


class Unavailable(AamError):
    """Required program, library or device that is missing (EX_UNAVAILABLE)."""

    status = 69


class Interrupted(AamError):
    """Run that a stop request ended, with a checkpoint to resume from (EX_TEMPFAIL)."""

    status = 75


class NotFinite(AamError):
    """Computation with NaN or infinity: diverged, overflowed or wrong (EX_SOFTWARE)."""

    status = 70


class NotPermitted(AamError):
    """Device or folder without permission for this user (EX_NOPERM)."""

    status = 77


class ConfigurationError(AamError):
    """Invalid settings file, variable or set of visible devices (EX_CONFIG)."""

    status = 78


class CannotCreate(AamError):
    """Output that cannot be written: permission, full disk, existing output (EX_CANTCREAT)."""

    status = 73


def repeated(ids: Iterable[T]) -> list[T]:
    """Return the duplicate ids, in order of first occurrence.

    >>> repeated(["b", "a", "b"])
    ['b']
    """
    return [name for name, times in Counter(ids).items() if times > 1]


def first_few(ids: Iterable[object]) -> str:
    """Return the number of `ids` and up to five of them, for the evidence of a message.

    >>> first_few(["a", "b"])
    '2 (a, b)'
    """
    names = [shortened(str(name)) for name in ids]
    first_names = names[:SHOWN_IDS]
    while len(first_names) > 1 and sum(map(len, first_names)) > _SHOWN_CHARACTERS:
        first_names.pop()
    more = ", ..." if len(names) > len(first_names) else ""
    return f"{len(names)} ({', '.join(first_names)}{more})"


def nearest(name: str, candidates: Iterable[str], otherwise: str, most: int = 1) -> str:
    """Return the remedy for a misspelt name: the nearest candidates, or `otherwise`.

    Candidates in order of preference: names that begin with it as a whole word; permutations of its
    letters; names at least 70 % similar; names that share a whole word. Dashes are underscores.

    >>> nearest("trian", ["train", "predict"], "see `aam --help`")
    "did you mean 'train'?"
    >>> nearest("Height", ["Weight", "Height(cm)"], "name one")
    "did you mean 'Height(cm)'?"
    >>> nearest("--quiet", ["--equal-depth"], "see `aam --help`")
    'see `aam --help`'
    """
    import difflib  # 0.5 ms that only an error costs

    plain, spellings = _plain(name), {_plain(spelling): spelling for spelling in candidates}
    matches = [text for text in spellings if re.match(rf"{re.escape(plain)}[\W_]", text)]
    if not 0 < len(matches) <= most:
        swapped = [text for text in spellings if sorted(text) == sorted(plain)][:most]
        matches = swapped or difflib.get_close_matches(plain, spellings, n=most, cutoff=_NEAR)
    containing = [
        text
        for text in spellings
        if plain in re.split(_WORD, text) or text in re.split(_WORD, plain)
    ]
    # A word that many names contain identifies none of them.
    if not matches and len(containing) <= most:
        matches = containing
    near = [spellings[text] for text in matches]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise


def _plain(name: str) -> str:
    return name.lower().lstrip("-").replace("_", "-")


def printable(text: str, longest: int = _LONGEST) -> str:
    r"""Return a text of an input on one line: escaped, the middle of a long one left out.

    >>> printable("a\nb"), printable("x" * 20, longest=9)
    ('a\\nb', 'xxx...xxx')
    """
    escaped = _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
    if len(escaped) <= longest:
        return escaped
    half = (longest - 3) // 2
    return f"{escaped[:half]}...{escaped[-half:]}"


def reason_of(error: BaseException) -> str:
    """Return the message of an exception on one line, or the name of its type."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def shortened(name: str, longest: int = 40) -> str:
    """Return a name, such as a sequence, cut to `longest` characters."""
    return name if len(name) <= longest else f"{name[: longest - 3]}..."
