"""SIF engines (Apptainer, SingularityCE and Pro 4): isolation, builds, records and verification.

--contain gives a minimal /dev, no home and no `bind path` of the site but /etc/hosts and
/etc/localtime; --cleanenv no variable of the host. `mount hostfs = yes` of a site holds even under
--contain, hence --no-mount hostfs. For each vendor of `launcher.gpus` an option binds the host's
libraries over the image's (--rocm), and another keeps them out (--no-rocm, in no help page, but an
option of Apptainer and of Singularity 4.1) and overrules `always use rocm = yes` of a site.

Jobs start a container for each rank, and the ranks of a node share /dev/shm, through which NCCL and
RCCL exchange data; inputs and private folders may lie there too. --contain always gives a container
a /dev/shm of its own (apptainer issue 3001) and skips every mount onto it ("already mounted";
"source and destination must be identical when binding to /dev": tried with Apptainer 1.4.5), or
fails for a mount below it ("doesn't exist in container"). Without --contain the container has the
host's /dev, so the options name what --contain would leave out: home, current folder, /tmp, hostfs
and the `bind path`s of the site, `bind-paths` of --no-mount (Apptainer 1.1, SingularityCE 3.10 and
Pro 4).

Every option has a variable (APPTAINER_FAKEROOT, APPTAINER_SECURITY, ...), so that a shell could
make the user root inside or mount a folder. Only those that move caches or change messages reach
the engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.contract.errors import MissingInput
from aam.contract.files import atomic_write, sha256
from launcher.engines.base import (
    GIB,
    LABELS,
    PYTHON,
    SMOKE,
    WHEELS,
    Builder,
    Engine,
    SpaceRequirement,
    labels,
    program,
    user_namespaces,
)  # fmt: skip
from launcher.gpus import VENDORS
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.mounts import mount_option

if TYPE_CHECKING:
    from launcher.engines.base import ImageBuild
    from launcher.engines.build_log import BuildLog
    from launcher.plan.plan import Plan


SIF = "sif"
PREFIXES = ("APPTAINER", "SINGULARITY")
SAFE = ("CACHEDIR", "TMPDIR", "LOCALCACHEDIR", "CONFIGDIR", "DISABLE_CACHE", "MESSAGELEVEL",
        "DEBUG", "VERBOSE", "QUIET", "SILENT", "NOCOLOR")  # fmt: skip
"""Where caches and configuration lie, and how much is printed."""
BUILDING = ("DOCKER_USERNAME", "DOCKER_PASSWORD", "AUTHFILE", "NOHTTPS", "NO_HTTPS", "FAKEROOT",
            "USERNS", "IGNORE_SUBUID", "IGNORE_FAKEROOT_COMMAND", "IGNORE_USERNS")  # fmt: skip
"""Names of variables for fetching a base and for root in a build."""
STARTERS = ("libexec/{}/bin/starter-suid", "lib/*/{}/bin/starter-suid")
"""Places of the set-uid program below an installation's prefix: its own, and Debian's."""

HOST_FILES = ("/etc/hosts", "/etc/localtime")
"""Default `bind path`s, which --contain keeps and `--no-mount bind-paths` does not."""


Conf = Mapping[str, tuple[str, ...]]
"""Keys of apptainer.conf or singularity.conf that count; one may come more than once.

Those count that keep a container from starting (each tried with Apptainer 1.4.5); what others
add is kept out by options, whatever they are.
"""

CONF_KEYS = ("user bind control", "allow container sif", "allow setuid", "enable overlay",
             "enable underlay")  # fmt: skip


def contained(host_libraries: str, host_devices: bool = False) -> list[str]:
    """Return the options that isolate a container."""
    argv = ["exec", "--cleanenv", "--no-eval", "--no-home"]
    if host_devices:
        argv += ["--no-mount", "home,cwd,tmp,hostfs,bind-paths"]
        argv += [argument for path in HOST_FILES for argument in mount_option(path, path, False)]
    else:
        argv += ["--contain", "--no-mount", "tmp,hostfs"]
    for vendor in VENDORS.values():
        if vendor.library_flags:
            bring, keep_out = vendor.library_flags
            argv.append(bring if vendor.name == host_libraries else keep_out)
    return argv


class SifEngine(Engine, Builder):
    """Apptainer or Singularity; one that is a link to the other reads the other's configuration."""

    def __init__(self, name: str, least: tuple[int, int]) -> None:
        self.name, self.least = name, least
        self.traits = EngineTraits(
            image_format=SIF,
            own_shm=True,
            host_libraries=True,
            hidden=tuple(f"{prefix}*" for prefix in PREFIXES),
            passed=tuple(f"{prefix}_{name}" for prefix in PREFIXES for name in SAFE),
            several_ranks=True,
            inside=f"{name.upper()}ENV_",
            # The shell in which these engines set variables (mvdan.cc/sh) ends its input there.
            ends_value="\x80",
        )

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        real = os.path.realpath(path)
        place = conf_path(os.path.basename(real), real)
        conf = read_conf(tree, place)
        set_uid = is_set_uid(real) and not _is(conf, "allow setuid", "no")
        obstacle = None if user_id == 0 or set_uid else user_namespaces(tree)
        return EngineFact(self.name, path, obstacle or conf_obstacle(conf, place),
                          traits=self.traits)  # fmt: skip

    def run_flags(self, plan: Plan) -> tuple[str, ...]:
        argv = [*contained(plan.host_libraries, plan.host_devices), "--pwd", plan.workdir]
        for mount in plan.mounts:
            argv += mount_option(mount.source, mount.target, mount.writable)
        for device in () if plan.host_devices else plan.devices:
            argv += mount_option(device, device, True)
        return tuple(argv)

    def command(self, plan: Plan) -> tuple[str, ...]:
        assert plan.place is not None
        return (plan.program, *self.run_flags(plan), plan.place, *program(plan))

    def needs(
        self, program: str, room: tuple[float, float], folder: Path, variables: Mapping[str, str]
    ) -> list[SpaceRequirement]:
        building, image = (int(part * GIB) for part in room)
        temporary, temporary_name = self._named("TMPDIR", variables)
        temporary = temporary or Path(variables.get("TMPDIR") or "/tmp")
        cache, cache_name = self._named("CACHEDIR", variables)
        home = Path(variables.get("HOME", "/")) / f".{self.name}" / "cache"
        places = (("unpacking", temporary, building, temporary_name),
                  ("cache", cache or home, GIB // 4, cache_name),
                  ("image", folder, image, "AAM_IMAGE_DIR"))  # fmt: skip
        return [SpaceRequirement(what, place, size, f"set {variable} to a folder with room")
                for what, place, size, variable in places]  # fmt: skip

    def _named(self, ending: str, variables: Mapping[str, str]) -> tuple[Path | None, str]:
        """Return the folder that a variable names; Apptainer reads Singularity's too."""
        names = [f"{self.name.upper()}_{ending}", f"SINGULARITY_{ending}"]
        for name in names:
            if variables.get(name):
                return Path(variables[name]), name
        return None, names[0]

    def build(self, build: ImageBuild, log: BuildLog) -> dict[str, Any]:
        import shutil  # with bz2 and lzma; a start that builds nothing saves 2 ms

        archive = build.archive
        if archive and build.place.exists() and archive.samefile(build.place):
            return self._recorded(build, build.place)
        with atomic_write(build.place) as temporary:
            if archive and sif_id(archive):
                shutil.copyfile(archive, temporary)
            else:
                environment = {**self._building(os.environ), "SOURCE_DATE_EPOCH": str(build.epoch)}
                log.run(self.build_argv(build, temporary), build.context, environment)
            if build.test:
                log.step("test")
                argv = self.exec_argv(build.program, str(temporary), [PYTHON, SMOKE])
                log.run(argv, build.scratch, self._building(os.environ))
            temporary.chmod(0o755)
            # This takes seconds; the file is not used without its record.
            record = self._recorded(build, temporary)
        return record

    def _recorded(self, build: ImageBuild, place: Path) -> dict[str, Any]:
        found = labels(self.exec_argv(build.program, str(place), ["cat", LABELS]), build.name)
        return {**record_of(place), "labels": found}

    def pull(self, build: ImageBuild, reference: str, log: BuildLog) -> dict[str, Any]:
        with atomic_write(build.place) as temporary:
            argv = [build.program, "pull", "--force", str(temporary), f"docker://{reference}"]
            log.run(argv, build.scratch, self._building(os.environ))
            temporary.chmod(0o755)
            record = self._recorded(build, temporary)
        return record

    def build_argv(self, build: ImageBuild, target: Path) -> list[str]:
        """Return the command that makes a SIF of a definition or of an archive."""
        # The test of the definition is that of the image; it runs once, when the SIF is complete.
        argv = [build.program, "build", "--notest"]
        for name, value in build.arguments.items():
            argv += ["--build-arg", f"{name}={value}"]
        argv += ["--bind", f"{build.wheels}:{WHEELS}:ro"] if build.wheels else []
        archive, definition = build.archive, f"containers/{build.name}.def"
        return [*argv, str(target), f"docker-archive:{archive}" if archive else definition]

    def exec_argv(self, program: str, place: str, argv: Sequence[str]) -> list[str]:
        # Root of a container lacks capabilities that Apptainer asks for without a namespace.
        namespace = ("--userns",) if os.geteuid() == 0 else ()
        return [program, "exec", *namespace, "--contain", "--cleanenv", "--no-home", place, *argv]

    def exists(self, program: str, recorded: Mapping[str, Any], place: Path) -> bool:
        return place.is_file() and difference(place, recorded) is None

    def verify(self, program: str, name: str, recorded: Mapping[str, Any], place: Path) -> str:
        remedy = f"build it again: `aam-launch images build {name} --rebuild`"
        if not place.is_file():
            raise MissingInput("The image is gone", f"'{place}'", remedy)
        now = sha256(place)
        if now != recorded.get("sha256"):
            evidence = f"'{place}' is sha256:{now}, recorded was sha256:{recorded.get('sha256')}"
            raise MissingInput("The image is another one", evidence, remedy)
        return str(place)

    def _building(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a build without variables that would change the image."""
        passed = {f"{prefix}_{name}" for prefix in PREFIXES for name in (*SAFE, *BUILDING)}
        return {k: v for k, v in variables.items() if k in passed or not k.startswith(PREFIXES)}


APPTAINER = SifEngine("apptainer", least=(1, 2))
SINGULARITY = SifEngine("singularity", least=(4, 0))
"""Singularity is SingularityCE or SingularityPro. `least` has build arguments (change logs)."""


def is_set_uid(real: str) -> bool:
    """Return whether a program has a set-uid starter."""
    program = Path(real)
    found = (s for place in STARTERS for s in program.parents[1].glob(place.format(program.name)))
    return any(starter.stat().st_mode & 0o4000 for starter in found)


def sif_id(path: str | Path) -> str | None:
    """Return "sif:UUID", the id that a build gives to a SIF; None for what is no complete SIF.

    The header (sylabs/sif, sif.go) ends with offset and size of the data, the last part of a file.
    """
    try:
        with open(path, "rb") as stream:
            head = stream.read(128)
            size = os.fstat(stream.fileno()).st_size
    except OSError:
        return None
    end = sum(int.from_bytes(head[at : at + 8], "little") for at in (112, 120))
    return f"sif:{head[48:64].hex()}" if head[32:41] == b"SIF_MAGIC" and size >= end else None


def record_of(place: Path) -> dict[str, Any]:
    """Return SHA-256, size and modification time of a SIF for images.json."""
    before = place.stat()
    return {"sha256": sha256(place), "bytes": before.st_size, "mtime_ns": before.st_mtime_ns}


def difference(place: Path, recorded: Mapping[str, Any]) -> str | None:
    """Return how a SIF differs from its record in size or time of change, or None."""
    facts = place.stat()
    if facts.st_size != recorded.get("bytes"):
        return f"it has {facts.st_size} bytes, recorded were {recorded.get('bytes')}"
    if facts.st_mtime_ns != recorded.get("mtime_ns"):
        return "it was written after it was recorded"
    return None


def conf_path(name: str, program: str) -> str:
    """Return where an engine's configuration lies: /etc for one in /usr, else below its prefix."""
    prefix = os.path.dirname(os.path.dirname(program))
    return f"{'' if prefix == '/usr' else prefix}/etc/{name}/{name}.conf"


def read_conf(tree: HostTree, path: str) -> Conf:
    """Return the keys that count; nothing where the file is absent or may not be read."""
    found: dict[str, tuple[str, ...]] = {}
    for line in (tree.read(path) or "").splitlines():
        key, equals, value = line.partition("=")
        name = key.strip()
        if equals and name in CONF_KEYS:
            found[name] = (*found.get(name, ()), value.strip())
    return found


def conf_obstacle(conf: Conf, path: str) -> str | None:
    """Return the setting that keeps containers from starting or from mounting files, or None."""
    if _is(conf, "user bind control", "no"):
        return f"`user bind control = no` in {path}: no file of the host can be mounted"
    if _is(conf, "allow container sif", "no"):
        return f"`allow container sif = no` in {path}"
    layers = ("enable overlay", "enable underlay")
    if all(_is(conf, key, "no") for key in layers):
        return f"neither overlay nor underlay is enabled in {path}: nothing can be mounted"
    return None


def _is(conf: Conf, key: str, value: str) -> bool:
    return conf.get(key, ("",))[-1].lower() == value
