"""Signatures of SIFs, verified by the engine: by a PEM key, or by the user's PGP keyring."""

from __future__ import annotations

import re
from pathlib import Path

from aam.contract.errors import MissingInput
from launcher import processes

FINGERPRINT = re.compile(r"Fingerprint: *([0-9A-F]+)")
UNKNOWN_KEY = ("signature made by unknown entity", "key material not provided")
"""Phrases of `verify` for a signature whose key is not in the keyring."""


def signature(program: str, place: Path, key: Path | None) -> str | None:
    """Verify the signatures of a signed SIF; return who signed it, or None if its key is unknown.

    Args:
        program: Apptainer or Singularity.
        key: PEM public key; None takes the PGP keyring of the user, without a key server.

    Raises:
        MissingInput: the file is not what was signed, or another key signed it.
    """
    argv = [program, "verify", *(["--key", str(key)] if key else ["--local"]), str(place)]
    done = processes.run(argv)
    output = done.stdout + done.stderr
    if done.returncode == 0:
        fingerprints = sorted(set(FINGERPRINT.findall(output)))
        return f"the key of '{key}'" if key else ", ".join(fingerprints) or "a key of the keyring"
    if key is None and any(phrase in output for phrase in UNKNOWN_KEY):
        return None
    evidence = f"'{place}', {(output.strip().splitlines() or ['no output'])[-1]}"
    remedy = "pull it again from a source that you trust, or build it"
    raise MissingInput("The signature of the image is not valid", evidence, remedy)
