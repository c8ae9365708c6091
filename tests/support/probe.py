#!/usr/bin/env python3
"""Probe in the place of `aam` in test images: prints devices, files and variables as JSON.

Where a word is `--output-dir FOLDER` it also tries to write there, and to every `--table` file.
A word `--samples N` is its exit status; `--asvs 0` makes it wait for a signal.
"""

import json
import os
import stat
import sys
import time


def content(path):
    with open(path, errors="surrogateescape") as stream:
        return stream.read()


def writable(path):
    try:
        if os.path.isdir(path):
            name = os.path.join(path, ".written")
            with open(name, "w") as stream:
                stream.write("x")
            os.unlink(name)
        else:
            with open(path, "a"):
                pass
        return True
    except OSError:
        return False


def devices(folder="/dev"):
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            facts = os.lstat(path)
            if stat.S_ISCHR(facts.st_mode) and not path.startswith("/dev/pts"):
                try:
                    with open(path, "rb", buffering=0):
                        found[path] = True
                except OSError:
                    found[path] = False
    return found


args = sys.argv[1:]
pairs = list(zip(args, args[1:]))  # noqa: B905, RUF007
paths = [v for k, v in pairs if k in ("--table", "--output-dir", "--tree", "--run-dir", "--output")]
if ("--asvs", "0") in pairs:
    print("waiting", flush=True)
    time.sleep(60)
    sys.exit(3)
print(
    json.dumps(
        {
            "args": args,
            "environment": dict(os.environ),
            "uid": os.geteuid(),
            "gid": os.getegid(),
            "folder": os.getcwd(),
            "devices": devices(),
            "exists": {path: os.path.exists(path) for path in paths},
            "writable": {path: writable(path) for path in paths},
            "text": {path: content(path) for path in paths if os.path.isfile(path)},
            "home": sorted(os.listdir("/home")) if os.path.isdir("/home") else [],
            "root": writable("/usr"),
            "caches": {
                name: writable(value)
                for name, value in os.environ.items()
                if name.endswith(("_CACHE_DIR", "_DB_PATH", "CACHE_HOME", "TMPDIR", "HOME"))
            },
            "libs": os.path.exists("/.singularity.d/libs")
            and sorted(os.listdir("/.singularity.d/libs")),
        }
    )
)
status = dict(pairs).get("--samples", "0")
sys.exit(int(status))
