"""The `aam-launch` program: check what is asked, decide how to run it, become it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aam import __version__
from launcher.errors import LaunchError, Unavailable, UsageError
from launcher.help import OWN, command_help, overview
from launcher.inputs import require_inputs
from launcher.plan.own import HELP, split_own
from launcher.plan.request import command_of, parse

if TYPE_CHECKING:
    from launcher.plan.catalog import Catalog
    from launcher.plan.layers import Settings
    from launcher.plan.plan import Plan

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aam-launch` with `argv` (the process's by default).

    Returns only to report: an exit status after help, a dry run or an error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except LaunchError as error:
        print(f"aam-launch: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in HELP:
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"aam-launch {__version__}")
        return 0
    if any(word in HELP for word in words):
        _, rest = split_own([word for word in words if word not in HELP])
        command = command_of(rest, OWN)
        print(overview() if command in OWN else command_help(command))
        return 0
    _, rest = split_own(words)
    command = command_of(rest, OWN)
    if command not in OWN:
        return run(words)
    at = words.index(command)
    return _RUN[command]([*words[:at], *words[at + 1 :]])


def run(words: Sequence[str]) -> int:
    """Decide, then become the program; or print the line that would."""
    from launcher.prepare import prepare

    request = parse(words)
    require_inputs(request)
    return _start(prepare(request)[1], request.dry_run)


def _start(plan: Plan, dry_run: bool) -> int:
    from launcher.engines import become, shell_line
    from launcher.explain import warn

    for line in warn(plan.findings):
        print(line, file=sys.stderr)
    if dry_run:
        print(shell_line(plan))
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    become(plan)
    raise AssertionError("unreachable")


def explain(words: Sequence[str]) -> int:
    """Print every decision about a command; runs nothing."""
    from launcher.explain import as_json, text
    from launcher.prepare import prepare

    request = parse(words, incomplete=True)
    capture = request.own.get("--host")
    if capture is None:
        require_inputs(request)
    host, plan = prepare(request, Path(capture[-1] if capture else "/"))
    print(as_json(host, plan) if "--json" in request.own else text(host, plan))
    return 0


def doctor(words: Sequence[str]) -> int:
    """Report on this host (or a captured one); 69 if something would fail."""
    from launcher import capture, images
    from launcher import doctor as checks
    from launcher.explain import facts
    from launcher.host import detect
    from launcher.host.versions import with_versions

    own, rest = split_own(words)
    _no_more(rest, "doctor")
    settings, catalog = _configured(own)
    host = detect(Path(own.get("--host", ("/",))[-1]))
    host = with_versions(host) if host.live else host
    if "--capture" in own:
        file = Path(own["--capture"][-1])
        print(f"{capture.write(host, file)} files in {file}")
        return 0
    built = images.built(settings, catalog) if host.live else images.assumed(settings, catalog)
    findings = checks.examine(host, catalog, built)
    findings += tuple(checks.room(settings.text("image_dir"))) if host.live else ()
    fitting = checks.fitting(host, catalog)
    if "--json" in own:
        said = {"host": facts(host), "fitting": [image.name for image in fitting]}
        _print_json({**said, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        print("\n".join(checks.lines(host, findings, fitting)))
    return Unavailable.status if any(f.severity == "error" for f in findings) else 0


def images(words: Sequence[str]) -> int:
    """List the catalog: what each image pins, where it is, whether it fits this host."""
    from launcher import doctor as checks
    from launcher import images as places
    from launcher.host import detect

    own, rest = split_own(words)
    _no_more(rest, "images")
    settings, catalog = _configured(own)
    built = places.built(settings, catalog)
    fitting = {image.name for image in checks.fitting(detect(), catalog)}
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
        _print_json(rows)
        return 0
    for row in rows:
        places_ = ", ".join(map(str, row["places"])) or "not built"  # type: ignore[call-overload]
        fits = "fits this host" if row["fits"] else "does not fit"
        print(f"{row['name']:<10} {row['title']:<28} {fits:<15} {places_}")
    return 0


def replay(words: Sequence[str]) -> int:
    """Run the run of a run.json again; options that follow it replace those of then."""
    from launcher import replay as record
    from launcher.prepare import prepare

    own, rest = split_own(words)
    if not rest:
        raise UsageError("Nothing to replay", "no run.json is named", "name one, or a run folder")
    recorded = record.read(Path(rest[0]))
    own_words = [
        w for flag, given in own.items() for w in ([f"{flag}={v}" for v in given] or [flag])
    ]
    os.chdir(recorded.folder)
    request = parse(record.changed(recorded.words, [*rest[1:], *own_words]))
    differs = record.inputs_differ(recorded)
    plan = None
    if not any("is gone" in finding.cause for finding in differs):
        _, plan = prepare(request)
        differs += record.plan_differs(recorded, plan)
    if plan is None or (differs and "--force" not in own):
        evidence = "; ".join(str(finding).rstrip(".") for finding in differs)
        remedy = "--force runs what can be run"
        raise Unavailable("This run cannot be repeated as it was", evidence, remedy)
    for finding in differs:
        print(f"aam-launch: warning: {finding}", file=sys.stderr)
    return _start(plan, request.dry_run)


def completion(words: Sequence[str]) -> int:
    """Print what a shell has to source."""
    from launcher.completion import SHELLS, script

    if len(words) != 1:
        remedy = f"write `aam-launch completion {SHELLS[0]}`"
        raise UsageError("Which shell?", f"one of {', '.join(SHELLS)}", remedy)
    print(script(words[0]), end="")
    return 0


def _configured(own: Mapping[str, tuple[str, ...]]) -> tuple[Settings, Catalog]:
    from launcher import config

    settings = config.read(own, os.environ, Path.cwd())
    return settings, config.catalog(settings, os.environ)


def _no_more(words: Sequence[str], command: str) -> None:
    if words:
        remedy = f"see `aam-launch {command} --help`"
        raise UsageError(f"`{command}` takes no such word", f"'{words[0]}'", remedy)


def _print_json(content: object) -> None:
    import json

    print(json.dumps(content, indent=2, ensure_ascii=False))


_RUN = {
    "explain": explain,
    "doctor": doctor,
    "images": images,
    "replay": replay,
    "completion": completion,
}


if __name__ == "__main__":
    sys.exit(main())
