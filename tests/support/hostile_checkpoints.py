"""Damaged and hostile checkpoints, made from a good one: name -> file."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from aam.network.training.checkpoints import write_tensors

Content = dict[str, Any]


def files(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield files that are cut, changed, of another format, or whose header is wrong."""
    yield "empty", b""
    yield "zeros", bytes(1000)
    yield "text", b"sample\tph\n" * 100
    for part in (1, 10, 50, 99):
        yield f"cut-{part}", good[: len(good) * part // 100]
    yield "cut-last-byte", good[:-1]
    yield "one-byte-more", good + b"\0"
    yield "middle-missing", good[: len(good) // 3] + good[len(good) // 2 :]
    yield "middle-zeroed", good[: len(good) // 3] + bytes(4096) + good[len(good) // 3 + 4096 :]
    yield "in-front", b"#!/bin/sh\n" + good[10:]
    yield "torch-save", _saved({"aam": {"format": 2}, "state_dict": {}}, True)
    yield "torch-legacy", _saved({"a": torch.zeros(3)}, False)
    yield "pickle", pickle.dumps(_Call(), protocol=2)
    size = struct.unpack("<Q", good[:8])[0]
    header, data = json.loads(good[8 : 8 + size]), good[8 + size :]
    name = next(name for name in header if name.endswith("weight"))
    yield "header-longer-than-file", struct.pack("<Q", 1 << 40) + good[8:]
    yield "header-huge", struct.pack("<Q", (1 << 64) - 1) + good[8:]
    yield "header-cut", struct.pack("<Q", size - 5) + good[8:]
    yield "header-no-json", struct.pack("<Q", size) + b"x" * size + data
    for wrong, change in {
        "shape": {"shape": [35_000_000_000]},
        "shape-negative": {"shape": [-1, 4]},
        "shape-beyond": {"shape": [2**62, 2**62]},
        "type": {"dtype": "F64"},
        "type-unknown": {"dtype": "F1024"},
        "beyond": {"data_offsets": [0, 1 << 50]},
        "backwards": {"data_offsets": [100, 0]},
        "overlap": {"data_offsets": [0, header[name]["data_offsets"][1]]},
    }.items():
        yield f"tensor-{wrong}", _file(header | {name: header[name] | change}, data)
    yield "tensor-missing", _file({k: v for k, v in header.items() if k != name}, data)
    yield "tensor-more", _file(header | {"more": header[name]}, data)
    yield "tensor-renamed", _file({k + "x" * (k == name): v for k, v in header.items()}, data)
    yield "no-metadata", _file({k: v for k, v in header.items() if k != "__metadata__"}, data)
    yield "metadata-none", _file(header | {"__metadata__": {"aam": "{}"}}, data)
    yield "metadata-number", _file(header | {"__metadata__": {"aam": 3, "crc32": 3}}, data)
    for named, text in {
        "no-json": "{",
        "list": "[]",
        "number": "3",
        "digits": "9" * 100_000,
        "deep": "[" * 100_000,
        "unknown-tensor": '{"aam": {"$tensor": "none"}}',
        "list-of-tensor": '{"aam": {"$tensor": []}}',
        "keys": '{"aam": ' * 900 + "1" + "}" * 900,
    }.items():
        yield f"values-{named}", _file({"__metadata__": _metadata(text)}, b"")


def contents(good: Content) -> Iterator[tuple[str, Content]]:
    """Yield contents of which one thing is not as it should be."""
    for key in ("state_dict", "aam", "resume"):
        yield f"without-{key}", {k: v for k, v in good.items() if k != key}
        yield f"other-{key}", good | {key: [1, {"a": torch.zeros(2)}]}
    changes: dict[str, Callable[[Content], object]] = {
        "layers": lambda c: c["aam"]["shape"].update(attention_layers=1_000_000),
        "width-beyond": lambda c: c["aam"]["shape"].update(embedding_dim=2**62),
        "heads": lambda c: c["aam"]["shape"].update(attention_heads=3),
        "shape-text": lambda c: c["aam"]["shape"].update(embedding_dim="8"),
        "shape-missing": lambda c: c["aam"]["shape"].pop("max_bp"),
        "dropout": lambda c: c["aam"]["shape"].update(dropout=float("nan")),
        "format": lambda c: c["aam"].update(format="2"),
        "vocabulary": lambda c: c["aam"].update(vocabulary="ABC"),
        "command": lambda c: c["aam"].update(command="rm"),
        "metric": lambda c: c["aam"].update(metric=["unweighted"]),
        "depth": lambda c: c["aam"]["plan"].update(rarefy_depth=-1),
        "target": lambda c: c["aam"].update(target=None),
        "scale": lambda c: c["aam"]["target"]["transform"].update(scale=0.0),
        "weight-nan": lambda c: _weight(c).fill_(float("nan")),
        "weight-shape": lambda c: c["state_dict"].update({_name(c): torch.zeros(3, 1)}),
        "weight-type": lambda c: c["state_dict"].update({_name(c): _weight(c).to(torch.int8)}),
        "weight-number": lambda c: c["state_dict"].update({_name(c): 3.0}),
        "weight-missing": lambda c: c["state_dict"].pop(_name(c)),
    }
    for name, change in changes.items():
        changed = copy.deepcopy(good)
        change(changed)
        yield name, changed


def states(good: Content) -> Iterator[tuple[str, Content]]:
    """Yield contents whose weights are good, and whose resume state is not."""
    first = next(iter(good["resume"]["optimizer"]["state"]))
    yield "none", good | {"resume": None}
    for key in good["resume"]:
        yield f"no-{key}", good | {"resume": {k: v for k, v in good["resume"].items() if k != key}}
        yield f"other-{key}", good | {"resume": good["resume"] | {key: "other"}}
    changes: dict[str, Callable[[Content], object]] = {
        "progress-missing": lambda r: r["progress"].pop("batch"),
        "progress-negative": lambda r: r["progress"].update(epoch=-2),
        "progress-fraction": lambda r: r["progress"].update(step=0.5),
        "progress-beyond": lambda r: r["progress"].update(batch=10**6),
        "optimizer-state": lambda r: r["optimizer"].update(state=[]),
        "optimizer-entry": lambda r: r["optimizer"]["state"][first].pop("exp_avg"),
        "optimizer-shape": lambda r: r["optimizer"]["state"][first].update(
            exp_avg=torch.zeros(1, 2)
        ),
        "optimizer-nan": lambda r: r["optimizer"]["state"][first]["exp_avg"].fill_(float("nan")),
        "optimizer-names": lambda r: r["optimizer"]["param_groups"][0]["params"].pop(),
        "history": lambda r: r.update(history=[{"epoch": "one"}]),
        "history-empty": lambda r: r.update(history=[{}]),
        "best": lambda r: r.update(best=torch.zeros(3)),
        "sums": lambda r: r.update(sums={"target": ["many", 3.0]}),
    }
    for name, change in changes.items():
        changed = copy.deepcopy(good)
        change(changed["resume"])
        yield name, changed


def _name(content: Content) -> str:
    return next(name for name in content["state_dict"] if name.endswith("weight"))


def _weight(content: Content) -> torch.Tensor:
    found: torch.Tensor = content["state_dict"][_name(content)]
    return found


class _Call:
    """Object whose pickle runs a program."""

    def __reduce__(self) -> Any:
        return (os.system, ("touch called",))


def _saved(content: Any, as_zip: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=as_zip)
    return stream.getvalue()


def _file(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _metadata(text: str) -> dict[str, str]:
    return {"aam": text, "crc32": str(zlib.crc32(text.encode()))}


def write(folder: Path, cases: Iterator[tuple[str, bytes | Content]]) -> dict[str, Path]:
    folder.mkdir(parents=True)
    written = {}
    for name, case in cases:
        written[name] = folder / f"{name}.ckpt"
        if isinstance(case, bytes):
            written[name].write_bytes(case)
        else:
            write_tensors(written[name], case)
    return written
