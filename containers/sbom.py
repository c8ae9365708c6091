"""SBOM of an image, run inside it: Debian and Python packages, as SPDX 2.3 JSON.

    sbom.py            print the document

Versions and hashes of Python packages are those of the lock; a package with one wheel in it has
that wheel's SHA-256. A licence is stated as SPDX where the package states an SPDX expression or
a name with one meaning; else it is NOASSERTION, with the package's own statement as the comment.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

AAM = Path("/opt/aam")
COPYRIGHTS = Path("/usr/share/doc")
NONE = "NOASSERTION"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)
DEBIAN = "${db:Status-Abbrev}\t${binary:Package}\t${Version}\t${Architecture}\n"
LICENCE_LINE = re.compile(r"^License: *(\S.*)$", re.MULTILINE)
IDS = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT",
       "MIT-0", "MIT-CMU", "MPL-2.0", "NCSA", "PSF-2.0", "Zlib"}  # fmt: skip
"""SPDX identifiers, as the field License of older packages has them."""
NAMES = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "mit license": "MIT",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
}
"""Other names of one licence there, in lower case."""
CLASSIFIERS = {
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
}
"""Classifiers that name one licence; those of BSD do not."""


def document(labels: dict[str, str], lock: str) -> dict[str, Any]:
    """Return the SPDX document of the image that this runs in."""
    name, version = labels.get("org.aam.name", "image"), labels.get("org.aam.version", NONE)
    root = _package("SPDXRef-image", f"aam-{name}", version, NONE, "", "")
    parts = [*python_packages(lock), *debian_packages()]
    total = labels.get("org.aam.packages", "").removeprefix("sha256:")
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"aam-{name}-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/aam-{name}-{version}-{total}",
        "creationInfo": {"created": _now(), "creators": [f"Tool: aam-{version}"]},
        "packages": [root, *parts],
        "relationships": [
            _relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image"),
            *(_relation("SPDXRef-image", "CONTAINS", part["SPDXID"]) for part in parts),
        ],
    }


def python_packages(lock: str) -> Iterator[dict[str, Any]]:
    """Yield the installed Python packages, by name."""
    hashes = {
        (_normal(name), version): re.findall(r"[0-9a-f]{64}", given)
        for name, version, given in PIN.findall(lock)
    }
    # Of several with one name Python imports the first.
    found = {_normal(d.metadata["Name"]): d for d in reversed([*distributions()])}
    for name, distribution in sorted(found.items()):
        version = distribution.version
        licence, statement = licence_of(distribution)
        purl = f"pkg:pypi/{name}@{version.replace('+', '%2B')}"
        package = _package(f"SPDXRef-python-{name}", name, version, licence, statement, purl)
        known = hashes.get((name, version), [])
        if len(known) == 1:
            package["checksums"] = [{"algorithm": "SHA256", "checksumValue": known[0]}]
        yield package


def licence_of(distribution: Distribution) -> tuple[str, str]:
    """Return a distribution's licence as SPDX, and its own statement where that is none."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):  # valid SPDX, by PEP 639
        return expression, ""
    stated = (metadata.get("License") or "").strip()
    if spdx := NAMES.get(stated.lower()):
        return spdx, ""
    if stated and set(re.split(r" AND | OR ", stated)) <= IDS:
        return stated, ""
    classifiers = [c for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    known = {CLASSIFIERS.get(classifier, NONE) for classifier in classifiers}
    if len(known) == 1 and (spdx := known.pop()) != NONE:
        return spdx, ""
    named = "; ".join(classifier.rpartition(":: ")[2] for classifier in classifiers)
    return NONE, named if "\n" in stated else stated or named


def debian_packages() -> Iterator[dict[str, Any]]:
    """Yield the installed Debian packages with the licences that their copyright file names."""
    query = ["dpkg-query", "--show", f"--showformat={DEBIAN}"]
    for line in subprocess.run(
        query, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        status, full, version, architecture = line.split("\t")
        if not status.startswith("ii"):
            continue
        name = full.partition(":")[0]
        try:
            text = (COPYRIGHTS / name / "copyright").read_text(errors="replace")
        except OSError:
            text = ""
        licences = ", ".join(sorted(set(LICENCE_LINE.findall(text))))
        purl = f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}"
        ident = f"SPDXRef-debian-{re.sub('[^a-zA-Z0-9.-]', '-', full)}"
        yield _package(ident, name, version, NONE, licences[:500], f"{purl}?arch={architecture}")


def _package(
    ident: str, name: str, version: str, licence: str, statement: str, purl: str
) -> dict[str, Any]:
    package: dict[str, Any] = {
        "SPDXID": ident,
        "name": name,
        "versionInfo": version,
        "downloadLocation": NONE,
        "filesAnalyzed": False,
        "licenseConcluded": NONE,
        "licenseDeclared": licence,
        "copyrightText": NONE,
    }
    if statement:
        package["licenseComments"] = f"Stated by the package: {statement}"
    if purl:
        package["externalRefs"] = [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": purl,
            }
        ]
    return package


def _relation(element: str, kind: str, related: str) -> dict[str, str]:
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related}


def _normal(name: str) -> str:
    """Return the normalized name of a Python package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _now() -> str:
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    """Print the document."""
    labels = json.loads((AAM / "labels.json").read_text())
    print(json.dumps(document(labels, (AAM / "lock.txt").read_text()), indent=1))


if __name__ == "__main__":
    main()
