"""Digests from a container registry and a package index, by the standard library.

OCI distribution specification 1.1 ("pulling manifests") with Docker's token authentication; the
simple repository API of package indexes (PEP 503).
"""

from __future__ import annotations

import html
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPMessage

from aam.contract.errors import Unavailable

PATIENCE = 60  # seconds
MANIFESTS = ", ".join((
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
))  # fmt: skip
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
LINK = re.compile(r'href="([^"#]*)#sha256=([0-9a-f]{64})"')
LOOPBACK = ("127.", "localhost")


def digest(reference: str) -> str:
    """Return the digest that a tag has in its registry.

    Args:
        reference: "debian:bookworm-slim", "127.0.0.1:5000/aam/base:tag".

    Raises:
        Unavailable: the registry cannot be reached, or has no such tag.
    """
    host, repository, tag = _split(reference)
    scheme = "http" if host.startswith(LOOPBACK) else "https"
    url = f"{scheme}://{host}/v2/{repository}/manifests/{tag}"
    headers = {"Accept": MANIFESTS}
    try:
        response = _head(url, headers)
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise _unreachable(url, error) from error
        token = _token(error.headers.get("WWW-Authenticate", ""), url)
        response = _head(url, {**headers, "Authorization": f"Bearer {token}"})
    found = response.get("Docker-Content-Digest", "")
    if not found.startswith("sha256:"):
        raise Unavailable("The registry returns no digest", url, "use another registry")
    return found


def wheel_hashes(index: str, project: str) -> dict[str, str]:
    """Return the SHA-256 of every file that an index has of a project, by the file's name.

    Raises:
        Unavailable: the index cannot be read.
    """
    url = f"{index.rstrip('/')}/{project}/"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as stream:
            text = stream.read().decode(errors="replace")
    except OSError as error:
        raise _unreachable(url, error) from error
    return {
        urllib.parse.unquote(html.unescape(link).rpartition("/")[2]): value
        for link, value in LINK.findall(text)
    }


def _split(reference: str) -> tuple[str, str, str]:
    """Return registry, repository and tag, with Docker's rules for short names."""
    name, _, tag = reference.partition("@")[0].rpartition(":")
    if not name or "/" in tag:
        name, tag = reference, "latest"
    head, slash, rest = name.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        return head, rest, tag
    return "registry-1.docker.io", name if slash else f"library/{name}", tag


def _token(challenge: str, url: str) -> str:
    query = dict(CHALLENGE.findall(challenge))
    realm = query.pop("realm", None)
    if realm is None:
        remedy = "log in with the engine, then build"
        raise Unavailable("The registry requires a login", url, remedy)
    address = f"{realm}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as stream:
            response = json.load(stream)
    except (OSError, ValueError) as error:
        raise _unreachable(address, error) from error
    return str(response.get("token") or response.get("access_token"))


def _head(url: str, headers: dict[str, str]) -> HTTPMessage:
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as stream:
            headers_of_response: HTTPMessage = stream.headers
            return headers_of_response
    except urllib.error.HTTPError:
        raise
    except OSError as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: Exception) -> Unavailable:
    if isinstance(error, urllib.error.HTTPError) and error.code >= 500:
        return Unavailable("The registry or index fails", f"{url}, {error}", "try again later")
    if isinstance(error, urllib.error.HTTPError):
        return Unavailable("Not in the registry or index", f"{url}, {error}", "check its name")
    reason = getattr(error, "reason", None) or error
    return Unavailable("No response", f"{url}, {reason}", "run this on a machine with a network")
