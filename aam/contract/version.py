"""Version of `aam` and `aam-launch`, its date and its address."""

__version__ = "0.1.0"

RELEASED = "2026-11-28"  # of CITATION.cff, set at a release

URL = "https://pypi.org/project/attention-all-microbes/"
