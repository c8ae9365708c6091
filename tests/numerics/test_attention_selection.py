"""Selection of the attention backends by the status of each."""

from __future__ import annotations

import pytest

from aam.contract.errors import Unavailable
from aam.contract.options.device import AttnImplementation
from aam.model.attention import BACKENDS
from aam.numerics.backends import AttentionChoice, Status, StatusOf, Use, select_backends

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


def test_a_wrong_backend_is_replaced_by_the_next_correct_one() -> None:
    found = chosen("auto", auto="wrong", mem_efficient="wrong", flash_masked="absent")
    assert names(found) == ("flash", "math")
    assert "computes wrong on cuda" in found.warnings[0]


def test_a_harmless_fault_is_avoided_where_that_is_possible() -> None:
    assert names(chosen("auto", auto="harmless")) == ("flash", "flash")
    others: dict[str, Status] = dict.fromkeys(BACKENDS, "wrong")
    assert names(chosen("math", **{**others, "math": "harmless"})) == ("math", "math")


def test_a_selection_without_a_correct_backend_is_refused() -> None:
    with pytest.raises(Unavailable, match="auto wrong, flash wrong") as caught:
        chosen("auto", **dict.fromkeys(ALL_RIGHT, "wrong"))
    assert caught.value.status == 69


def test_the_selection_stops_at_the_first_correct_backend() -> None:
    """Trying a backend costs time on a GPU."""
    tried = []

    def status_of(backend: str, use: Use) -> Status:
        tried.append((backend, use))
        return "right"

    counted: StatusOf = status_of
    select_backends("math", BACKENDS, counted, "cuda")
    assert tried == [("math", "plain"), ("math", "masked")]
