"""Sentences on the result of a run, for the console and for the page: the verdict comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aam.number_format import significant


def result_sentences(scores: Mapping[str, Any], unit: str = "") -> list[str]:
    """Return what scores.json says, the verdict against the dummy first.

    Args:
        scores: content of scores.json.
        unit: unit of a numeric target; "" if unknown.
    """
    sentences = [scores["verdict"]["sentence"]]
    if repeated := scores.get("repeated_samples"):
        sentences.append(f"{repeated['sentence']}.")
    members = [name for name in scores["models"] if name not in ("ensemble", "dummy")]
    if len(members) > 1:
        sentences.append(f"The ensemble is the mean of {' and '.join(members)}.")
        sentences += [
            f"{one['sentence'][:1].upper()}{one['sentence'][1:]}."
            for one in scores["differences"]
            if one["model"] == "ensemble"
        ]
    if interval := scores.get("interval"):
        unit = "ranks" if scores.get("kind") == "ordinal" else unit
        half = f"{significant(interval['half_width'])} {unit}".rstrip()
        sentences.append(
            f"Prediction interval: {interval['coverage']:.0%} of new samples are expected within "
            f"{half} of their prediction; of these samples {interval['covered']:.0%} are."
        )
    return sentences


def is_better(scores: Mapping[str, Any] | None) -> bool:
    """Return whether a run is shown to be better than a dummy, or has no verdict."""
    return scores is None or scores["verdict"].get("outcome", "better") == "better"
