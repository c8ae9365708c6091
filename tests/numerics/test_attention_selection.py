"""Selection of the attention backends by the status of each."""

from __future__ import annotations

import pytest

from aam.contract.errors import Unavailable
from aam.contract.options.device import AttnImplementation
from aam.model.attention import BACKENDS
from aam.numerics.backends import Status, Use, select_backends


def chosen(requested: AttnImplementation, **statuses: Status) -> tuple[str, str, str]:
    """Select where all backends are right but for `statuses`; `flash_masked` is one use."""

    def status_of(backend: str, use: Use) -> Status:
        return statuses.get(f"{backend}_{use}") or statuses.get(backend, "right")

    return select_backends(requested, BACKENDS, status_of, "cuda")


def test_a_correct_backend_is_used_as_requested() -> None:
    assert chosen("sdpa") == ("auto", "auto", "")
    assert chosen("mem_efficient") == ("mem_efficient", "mem_efficient", "")


def test_a_backend_that_cannot_run_is_replaced() -> None:
    assert chosen("flash", flash_masked="absent") == (
        "flash",
        "mem_efficient",
        "--attn-implementation flash supports no mask on cuda; "
        "mem_efficient runs where there is one.",
    )
    assert chosen("mem_efficient", mem_efficient="absent", flash_masked="absent") == (
        "flash",
        "math",
        "--attn-implementation mem_efficient cannot run on cuda; "
        "flash, and math with masks, run instead.",
    )


def test_a_selection_without_a_correct_backend_is_refused() -> None:
    with pytest.raises(Unavailable, match="auto wrong, flash wrong") as caught:
        chosen("auto", **dict.fromkeys(BACKENDS, "wrong"))
    assert caught.value.status == 69
