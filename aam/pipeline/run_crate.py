"""RO-Crate of a run folder: `ro-crate-metadata.json`, made from run.json alone.

It follows the Process Run Crate 0.5 (https://w3id.org/ro/wfrun/process/0.5) on RO-Crate 1.1, a
format that archives read: command with options, software, container image, inputs and outputs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aam import run_record
from aam.console import later_step
from aam.contract import run_files
from aam.contract.files import write_json
from aam.contract.options import flat
from aam.contract.run_files import CRATE, FILES, RECORD
from aam.contract.version import URL

_CRATE, _PROCESS = "https://w3id.org/ro/crate/1.1", "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = "https://w3id.org/ro/terms/workflow-run#"
_FORMATS = {".json": "application/json", ".tsv": "text/tab-separated-values", ".html": "text/html",
            ".txt": "text/plain", ".csv": "text/csv"}  # fmt: skip
_REFERENCE = re.compile(r"(?P<registry>[^/@]+)/(?P<name>[^@]+?)(:(?P<tag>[\w.-]+))?(@.*)?")
_LICENSE = {"@id": "#license", "@type": "CreativeWork", "name": "No license chosen",
            "description": "Replace this entry by the license under which you publish the results."
            }  # fmt: skip

Entity = dict[str, Any]


def write_crate(folder: Path) -> None:
    """Write the metadata of a run folder, from its run.json and the files that this lists."""
    with later_step("research object"):  # the folder may be read-only
        write_json(folder / CRATE, crate(folder, run_record.read(folder / RECORD)))
        run_files.add(folder, CRATE)


def crate(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a run with a record, as JSON-LD."""
    finished = str(record.get("finished") or "")
    outputs, inputs = list(_outputs(folder)), list(_inputs(record))
    options = [
        {"@id": f"#option-{name}", "@type": "PropertyValue",
         "name": f"--{name.replace('_', '-')}", "value": _text(value)}
        for name, value in flat(record["options"]).items() if value not in (None, [], "")
    ]  # fmt: skip
    software, image = list(_software(record)), _image(record.get("launch") or {})
    command = f"aam {record['command']}"
    action: Entity = {
        "@id": "#run",
        "@type": "CreateAction",
        "name": command,
        "description": shlex.join(["aam", *map(str, (record.get("argv") or [""])[1:])]),
        "instrument": _id(software[0]),
        "object": [_id(entity) for entity in (*inputs, *options)],
        "result": [_id(entity) for entity in outputs],
        "startTime": record["started"],
    }
    if finished:
        action |= {"endTime": finished, "actionStatus": "http://schema.org/CompletedActionStatus"}
    if image:
        action["containerImage"] = _id(image[0])
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{command}: {folder.resolve().name}",
        "description": f"Results of `{command}`, with the record of the run in {RECORD}.",
        "datePublished": finished or record["started"],
        "license": _id(_LICENSE),
        "conformsTo": {"@id": _PROCESS},
        "hasPart": [_id(entity) for entity in (*outputs, *inputs)],
        "mentions": _id(action),
    }
    descriptor = {"@id": CRATE, "@type": "CreativeWork", "conformsTo": {"@id": _CRATE},
                  "about": _id(root)}  # fmt: skip
    profile = {"@id": _PROCESS, "@type": "CreativeWork", "name": "Process Run Crate",
               "version": "0.5"}  # fmt: skip
    uses_terms = ("ContainerImage", "SIFImage", "DockerImage", "containerImage", "registry", "tag",
             "sha256")  # fmt: skip
    return {
        "@context": [f"{_CRATE}/context", {name: f"{_TERMS}{name}" for name in uses_terms}],
        "@graph": [descriptor, root, profile, _LICENSE, action, *software, *image, *inputs,
                   *outputs, *options],
    }  # fmt: skip


def _id(entity: Entity) -> Entity:
    return {"@id": entity["@id"]}


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _outputs(folder: Path) -> Iterator[Entity]:
    for name in (RECORD, *run_files.files_of(folder)):
        if name != CRATE:
            yield _data(folder / name, quote(name), name, FILES.get(Path(name).name, ""))


def _inputs(record: Mapping[str, Any]) -> Iterator[Entity]:
    # Two options may name the same file: one entity.
    files = {file["path"]: (flag, file) for flag, file in (record.get("inputs") or {}).items()}
    for path, (flag, file) in files.items():
        entity = _data(Path(path), Path(path).as_uri(), Path(path).name, f"Input {flag}")
        yield entity | {"contentSize": str(file.get("bytes", "")), "sha256": file["sha256"]}


def _data(path: Path, address: str, name: str, description: str) -> Entity:
    """Describe a file or a folder, whose address ends with a slash."""
    if path.is_dir():
        return {"@id": f"{address}/", "@type": "Dataset", "name": name, "description": description}
    form = _FORMATS.get(path.suffix, "application/octet-stream")
    return {"@id": address, "@type": "File", "name": name, "description": description,
            "encodingFormat": form}  # fmt: skip


def _software(record: Mapping[str, Any]) -> Iterator[Entity]:
    """Describe `aam`, then Python and the libraries that it required."""
    versions = record.get("versions") or {}
    needed = []
    for name, version in versions.items():
        url = "https://www.python.org/" if name == "python" else f"https://pypi.org/project/{name}/"
        needed.append({"@id": url, "@type": "SoftwareApplication", "name": name, "url": url,
                       "softwareVersion": version})  # fmt: skip
    yield {"@id": URL, "@type": "SoftwareApplication", "name": "aam", "url": URL,
           "softwareVersion": record["aam"],
           "softwareRequirements": [_id(entity) for entity in needed]}  # fmt: skip
    yield from needed


def _image(launch: Mapping[str, Any]) -> list[Entity]:
    """Describe the container image of a launch; none without a container."""
    if not launch.get("image"):
        return []
    location, digest = str(launch.get("place") or ""), str(launch.get("digest") or "")
    kind = "SIFImage" if location.endswith(".sif") else "DockerImage"
    image = {"@id": "#image", "@type": "ContainerImage", "name": launch["image"],
             "additionalType": {"@id": f"{_TERMS}{kind}"}, "identifier": location}  # fmt: skip
    if kind == "DockerImage" and (reference := _REFERENCE.fullmatch(location)):
        image |= {key: text for key, text in reference.groupdict().items() if text}
    if digest:
        image["sha256"] = digest.removeprefix("sha256:")
    return [image]
