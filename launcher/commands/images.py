"""`aam-launch images`: what each image pins, where it is, whether it fits this host."""

from __future__ import annotations

from collections.abc import Sequence

from launcher import config, doctor, images
from launcher.commands import no_more, print_json
from launcher.host import detect
from launcher.plan.own import split_own


def run(words: Sequence[str]) -> int:
    """List the catalog."""
    own, rest = split_own(words)
    no_more(rest, "images")
    settings, catalog = config.configured(own)
    built = images.built(settings, catalog)
    fitting = {image.name for image in doctor.fitting(detect(), catalog)}
    rows = [
        {
            "name": image.name,
            "title": image.title,
            "fits": image.name in fitting,
            "pins": dict(image.pins),
            "places": [place.place for place in built if place.image == image.name],
        }
        for image in catalog.images
    ]
    if "--json" in own:
        print_json(rows)
        return 0
    for row in rows:
        places = ", ".join(map(str, row["places"])) or "not built"  # type: ignore[call-overload]
        fits = "fits this host" if row["fits"] else "does not fit"
        print(f"{row['name']:<10} {row['title']:<28} {fits:<15} {places}")
    return 0
