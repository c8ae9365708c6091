"""Selection of the attention backends by the status of each."""

from __future__ import annotations

import pytest

from aam.contract.errors import Unavailable
from aam.contract.options.device import AttnImplementation
from aam.model.attention import BACKENDS
from aam.numerics.backends import AttentionChoice, Status, Use, select_backends

ALL_RIGHT: dict[str, Status] = dict.fromkeys(BACKENDS, "right")


def chosen(requested: AttnImplementation, **statuses: Status) -> AttentionChoice:
    """Select where all backends are right but for `statuses`; `flash_masked` is one use."""

    def status_of(backend: str, use: Use) -> Status:
        return statuses.get(f"{backend}_{use}") or statuses.get(backend, "right")

    return select_backends(requested, BACKENDS, status_of, "cuda")


def names(choice: AttentionChoice) -> tuple[str, str]:
    return choice.plain, choice.masked


@pytest.mark.parametrize("requested", ["auto", "sdpa", "flash", "mem_efficient", "math"])
def test_a_correct_backend_is_used_as_requested(requested: AttnImplementation) -> None:
    found = chosen(requested)
    assert names(found) == (("auto",) * 2 if requested == "sdpa" else (requested,) * 2)
    assert found.warnings == ()


def test_a_backend_without_masks_is_used_where_none_is_needed() -> None:
    found = chosen("flash", flash_masked="absent")
    assert names(found) == ("flash", "mem_efficient")
    assert found.warnings == (
        "--attn-implementation flash supports no mask on cuda; "
        "mem_efficient runs where there is one.",
    )


def test_a_backend_that_cannot_run_is_replaced() -> None:
    found = chosen("mem_efficient", mem_efficient="absent", flash_masked="absent")
    assert names(found) == ("flash", "math")
    assert found.warnings == (
        "--attn-implementation mem_efficient cannot run on cuda; "
        "flash, and math with masks, run instead.",
    )


def test_a_selection_without_a_correct_backend_is_refused() -> None:
    with pytest.raises(Unavailable, match="auto wrong, flash wrong") as caught:
        chosen("auto", **dict.fromkeys(ALL_RIGHT, "wrong"))
    assert caught.value.status == 69
