"""Damaged and hostile checkpoints, made from a good one: name -> file."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

Content = dict[str, Any]


def archives(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield archives that are cut, changed or packed otherwise."""
    yield "empty", b""
    yield "zeros", bytes(1000)
    yield "text", b"sample\tph\n" * 100
    for part in (1, 10, 50, 99):
        yield f"cut-{part}", good[: len(good) * part // 100]
    yield "cut-last-byte", good[:-1]
    yield "middle-missing", good[: len(good) // 3] + good[len(good) // 2 :]
    yield "middle-zeroed", good[: len(good) // 3] + bytes(4096) + good[len(good) // 3 + 4096 :]
    yield "in-front", b"#!/bin/sh\n" + good[10:]
    yield "legacy", _legacy()
    members = _members(good)
    pkl = members["archive/data.pkl"]
    yield "no-pickle", _zip({k: v for k, v in members.items() if not k.endswith("data.pkl")})
    yield "no-tensor", _zip({k: v for k, v in members.items() if not k.endswith("data/3")})
    yield "longer-tensor", _zip(members | {"archive/data/3": members["archive/data/3"] + b"abcd"})
    yield "compressed", _zip(members, zipfile.ZIP_DEFLATED)
    yield "zip-bomb", _zip({"archive/data.pkl": bytes(1 << 28)}, zipfile.ZIP_DEFLATED)
    yield "big-endian", _zip(members | {"archive/byteorder": b"big"})
    yield "declared-sizes", _declared(good)
    yield "cut-pickle", _zip(members | {"archive/data.pkl": pkl[: len(pkl) // 2]})
    for name, program in _programs():
        yield f"pickle-{name}", _zip(members | {"archive/data.pkl": program})


def contents(good: Content) -> Iterator[tuple[str, Content]]:
    """Yield contents of which one thing is not as it should be."""
    for key in ("state_dict", "loops", "optimizer_states", "lr_schedulers", "callbacks",
                "epoch", "global_step", "pytorch-lightning_version", "aam"):  # fmt: skip
        yield f"without-{key}", {k: v for k, v in good.items() if k != key}
        yield f"other-{key}", good | {key: [1, {"a": torch.zeros(2)}]}
    changes: dict[str, Callable[[Content], object]] = {
        "layers": lambda c: c["aam"]["shape"].update(attention_layers=1_000_000),
        "width": lambda c: c["aam"]["shape"].update(embedding_dim=60_000),
        "width-beyond": lambda c: c["aam"]["shape"].update(embedding_dim=2**62),
        "length": lambda c: c["aam"]["shape"].update(max_bp=10**12),
        "heads": lambda c: c["aam"]["shape"].update(attention_heads=3),
        "profile": lambda c: c["aam"]["shape"].update(profile_features=10**9),
        "shape-text": lambda c: c["aam"]["shape"].update(embedding_dim="8"),
        "shape-key": lambda c: c["aam"]["shape"].update(stranger=8),
        "shape-missing": lambda c: c["aam"]["shape"].pop("max_bp"),
        "dropout": lambda c: c["aam"]["shape"].update(dropout=float("nan")),
        "format": lambda c: c["aam"].update(format="2"),
        "vocabulary": lambda c: c["aam"].update(vocabulary="ABC"),
        "command": lambda c: c["aam"].update(command="rm"),
        "metric": lambda c: c["aam"].update(metric=["unweighted"]),
        "depth": lambda c: c["aam"]["plan"].update(rarefy_depth=-1),
        "tokens": lambda c: c["aam"]["plan"].update(token_limit=0),
        "target": lambda c: c["aam"].update(target=None),
        "scale": lambda c: c["aam"]["target"]["transform"].update(scale=0.0),
        "classes": lambda c: c["aam"]["target"].update(classes=("a", "b")),
        "options": lambda c: c["aam"].update(options={"a": torch.zeros(2)}),
        "weight-nan": lambda c: _weight(c).fill_(float("nan")),
        "weight-shape": lambda c: c["state_dict"].update({_name(c): torch.zeros(3, 1)}),
        "weight-type": lambda c: c["state_dict"].update({_name(c): _weight(c).to(torch.int8)}),
        "weight-number": lambda c: c["state_dict"].update({_name(c): 3.0}),
        "weight-missing": lambda c: c["state_dict"].pop(_name(c)),
        "weight-sparse": lambda c: c["state_dict"].update({_name(c): _weight(c).to_sparse()}),
        "weight-meta": lambda c: c["state_dict"].update({_name(c): _weight(c).to("meta")}),
        "weight-huge": lambda c: c["state_dict"].update(
            {_name(c): torch.zeros(1).expand(35_000_000_000)}
        ),
        "itself": lambda c: c["callbacks"].update(all=c),
    }
    for name, change in changes.items():
        changed = copy.deepcopy(good)
        change(changed)
        yield name, changed


def states(good: Content) -> Iterator[tuple[str, Content]]:
    """Yield contents whose weights are good, and whose state of training is not."""
    first = next(iter(good["optimizer_states"][0]["state"]))
    changes: dict[str, Callable[[Content], object]] = {
        "no-fit-loop": lambda c: c["loops"].pop("fit_loop"),
        "progress": lambda c: _loop(c).update({"epoch_progress": 3}),
        "progress-missing": lambda c: _loop(c).pop("epoch_loop.batch_progress"),
        "progress-negative": lambda c: _loop(c)["epoch_progress"]["current"].update(processed=-2),
        "optimizers": lambda c: c.update(optimizer_states=[]),
        "optimizer-state": lambda c: c["optimizer_states"][0].update(state=[]),
        "optimizer-entry": lambda c: c["optimizer_states"][0]["state"][first].pop("exp_avg"),
        "optimizer-shape": lambda c: c["optimizer_states"][0]["state"][first].update(
            exp_avg=torch.zeros(1, 2)
        ),
        "optimizer-nan": lambda c: c["optimizer_states"][0]["state"][first]["exp_avg"].fill_(
            float("nan")
        ),
        "optimizer-names": lambda c: c["optimizer_states"][0]["param_groups"][0]["params"].pop(),
        "optimizer-rate": lambda c: c["optimizer_states"][0]["param_groups"][0].update(lr="fast"),
        "optimizer-betas": lambda c: c["optimizer_states"][0]["param_groups"][0].update(betas=0.9),
        "schedulers": lambda c: c.update(lr_schedulers=[]),
        "scheduler-type": lambda c: c["lr_schedulers"][0].update(last_epoch="eight"),
        "scheduler-list": lambda c: c["lr_schedulers"][0].update(base_lrs=[1.0]),
        "early-stopping": lambda c: _callback(c, "EarlyStopping").pop("wait_count"),
        "epoch-table": lambda c: c["callbacks"].update(EpochTable={}),
        "epoch-rows": lambda c: c["callbacks"]["EpochTable"].update(rows=[{"epoch": "one"}]),
        "kept": lambda c: _callback(c, "ModelCheckpoint").update(best_model_score=torch.zeros(3)),
        "sums": lambda c: c.update(train_sums={"target": ["many", 3.0]}),
        "kept-path": lambda c: _callback(c, "ModelCheckpoint").update(best_model_path=3),
    }
    for name, change in changes.items():
        changed = copy.deepcopy(good)
        change(changed)
        yield name, changed


def saved(content: Any) -> bytes:
    """Return what torch.save writes."""
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def _loop(content: Content) -> dict[str, Any]:
    found: dict[str, Any] = content["loops"]["fit_loop"]
    return found


def _callback(content: Content, name: str) -> dict[str, Any]:
    states: dict[str, dict[str, Any]] = content["callbacks"]
    return next(state for key, state in states.items() if key.startswith(name))


def _name(content: Content) -> str:
    return next(name for name in content["state_dict"] if name.endswith("weight"))


def _weight(content: Content) -> torch.Tensor:
    found: torch.Tensor = content["state_dict"][_name(content)]
    return found


def _members(good: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zip(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def _legacy() -> bytes:
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def _declared(good: bytes) -> bytes:
    """Let the directory declare 140 GB for its first member."""
    place = good.rindex(b"PK\x01\x02", 0, good.index(b"PK\x01\x02") + 4)
    return good[: place + 20] + struct.pack("<II", 0xF0000000, 0xF0000000) + good[place + 28 :]


def _programs() -> Iterator[tuple[str, bytes]]:
    """Yield pickles that do something, or that want much."""

    class Call:
        def __reduce__(self) -> Any:
            return (os.system, ("touch called",))

    yield "call", pickle.dumps(Call(), protocol=2)
    yield "call-inside", pickle.dumps({"aam": {"format": 2}, "state_dict": Call()}, protocol=2)
    yield "inst", b"(S'touch called'\nios\nsystem\n."
    yield "attribute", b"\x80\x02ccollections\nOrderedDict\n}X\x01\x00\x00\x00aK\x01sb."
    yield "no-stop", b"\x80\x02}"
    yield "no-stack", b"\x80\x02\x86."
    yield "many", b"\x80\x02" + b"]" * 4_100_000 + b"."
    yield "marks", b"\x80\x02" + b"(" * 4_100_000 + b"."
    yield "memo", b"\x80\x02]r\xff\xff\xff\x7f."
    yield "long-text", b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"a."
    yield "deep", b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b"."
    yield "endless", b"\x80\x02]q\x00h\x00a."
    # Each of 60 lists holds the one before it twice: a few bytes, 2^60 items for a visitor.
    doubling = b"".join(b"](h%ch%ceq%c" % (k, k, k + 1) for k in range(60))
    yield "doubling", b"\x80\x02]q\x00" + doubling + b"."
    huge = b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(9))
    yield "keys", b"\x80\x02}(" + huge + b"u."
    random_bytes = random.Random(1).randbytes(3000)
    yield "random", b"\x80\x02" + random_bytes


def write(folder: Path, cases: Iterator[tuple[str, bytes]]) -> dict[str, Path]:
    """Write each case to a file."""
    folder.mkdir(parents=True)
    files = {}
    for name, data in cases:
        files[name] = folder / f"{name}.ckpt"
        files[name].write_bytes(data)
    return files
