"""SIF engines (Apptainer, SingularityCE and Pro 4): isolation, builds, records and verification.

--contain gives a minimal /dev, no home and no `bind path` of the site but /etc/hosts and
/etc/localtime; `mount hostfs = yes` of a site holds even then, hence --no-mount hostfs. --no-rocm
(in no help page) overrules `always use rocm = yes` of a site.

The ranks of a node share /dev/shm, and inputs may lie there too. --contain always gives a container
a /dev/shm of its own (apptainer issue 3001) and refuses mounts onto it or below it (tried with
Apptainer 1.4.5). Without --contain the container has the host's /dev, so the options name what
--contain would leave out; `bind-paths` of --no-mount: Apptainer 1.1, SingularityCE 3.10 and Pro 4.

Every option has a variable (APPTAINER_FAKEROOT, ...), so that a shell could make the user root
inside. Only those that move caches or change messages reach the engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from aam.contract.errors import CannotCreate
from aam.contract.files import atomic_write, sha256
from launcher.engines import engine
from launcher.gpus import VENDORS
from launcher.host.facts import EngineFact, EngineTraits
from launcher.host.tree import HostTree
from launcher.plan.assembly import Plan
from launcher.plan.mounts import mount_option

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
"""Default `bind path`s: --contain keeps them, `--no-mount bind-paths` does not."""


class SifEngine(engine.Engine, engine.Builder):
    """Apptainer or Singularity; one that is a link to the other reads the other's configuration."""

    def __init__(self, name: str, least: tuple[int, int]) -> None:
        self.name, self.least = name, least
        # The shell in which these engines set variables (mvdan.cc/sh) ends its input at U+0080.
        self.traits = EngineTraits(
            image_format=SIF, own_shm=True, host_libraries=True, several_ranks=True,
            hidden=tuple(f"{prefix}*" for prefix in PREFIXES),
            passed=tuple(f"{prefix}_{name}" for prefix in PREFIXES for name in SAFE),
            inside=f"{name.upper()}ENV_", ends_value="\x80",
        )  # fmt: skip

    def detect(
        self, path: str, tree: HostTree, environment: Mapping[str, str], user_id: int
    ) -> EngineFact:
        real = os.path.realpath(path)  # of singularity, it may be apptainer
        program, installed = os.path.basename(real), Path(real).parents[1]
        # The last value of each key of the configuration: in /etc for an engine in /usr, else below
        # its prefix. Those keys count that keep a container from starting (each tried with
        # Apptainer 1.4.5); what others add is kept out by options, whatever they are.
        prefix = "" if str(installed) == "/usr" else str(installed)
        configuration = f"{prefix}/etc/{program}/{program}.conf"
        pairs = (line.partition("=") for line in (tree.read(configuration) or "").splitlines())
        conf = {key.strip(): value.strip().lower() for key, equals, value in pairs if equals}
        starters = (s for pattern in STARTERS for s in installed.glob(pattern.format(program)))
        set_uid = any(starter.stat().st_mode & 0o4000 for starter in starters)
        obstacle, set_uid = None, set_uid and conf.get("allow setuid") != "no"
        if user_id and not set_uid:
            obstacle = engine.user_namespaces(tree)
        if conf.get("user bind control") == "no":
            why = f"`user bind control = no` in {configuration}: no file of the host can be mounted"
            obstacle = obstacle or why
        if conf.get("allow container sif") == "no":
            obstacle = obstacle or f"`allow container sif = no` in {configuration}"
        if conf.get("enable overlay") == conf.get("enable underlay") == "no":
            layers = "neither overlay nor underlay is enabled"
            obstacle = obstacle or f"{layers} in {configuration}: nothing can be mounted"
        return EngineFact(self.name, path, obstacle, traits=self.traits)

    def command(self, plan: Plan) -> tuple[str, ...]:
        assert plan.place is not None
        argv = [plan.program, "exec", "--cleanenv", "--no-eval", "--no-home"]
        if plan.host_devices:
            argv += ["--no-mount", "home,cwd,tmp,hostfs,bind-paths"]
            argv += [word for path in HOST_FILES for word in mount_option(path, path, False)]
        else:
            argv += ["--contain", "--no-mount", "tmp,hostfs"]
        for vendor in VENDORS.values():
            if vendor.library_flags:
                bring, keep_out = vendor.library_flags
                argv.append(bring if vendor.name == plan.host_libraries else keep_out)
        argv += ["--pwd", plan.workdir]
        for mount in plan.mounts:
            argv += mount_option(mount.source, mount.target, mount.writable)
        for device in () if plan.host_devices else plan.devices:
            argv += mount_option(device, device, True)
        return (*argv, plan.place, *engine.program(plan))

    def needs(
        self, build: engine.ImageBuild, variables: Mapping[str, str]
    ) -> list[tuple[str, Path, int, str]]:
        """Return the steps of a build, with folder, bytes, and how to move each elsewhere."""
        folder, room = build.place.parent, build.room
        if build.archive:  # an image takes at most as much; unpacking one is the engine's
            size, remedy = build.archive.stat().st_size, "set AAM_IMAGE_DIR to a folder with room"
            return [("image", folder, size, remedy)]

        def named(ending: str, usual: Path) -> tuple[Path, str]:
            # Apptainer reads Singularity's variables too.
            names = [f"{self.name.upper()}_{ending}", f"SINGULARITY_{ending}"]
            name = next((name for name in names if variables.get(name)), None)
            return (Path(variables[name]), name) if name else (usual, names[0])

        home = Path(variables.get("HOME", "/")) / f".{self.name}" / "cache"
        temporary = named("TMPDIR", Path(variables.get("TMPDIR") or "/tmp"))
        places = (("unpacking", *temporary, int(room[0] * engine.GIB)),
                  ("cache", *named("CACHEDIR", home), engine.GIB // 4),
                  ("image", folder, "AAM_IMAGE_DIR", int(room[1] * engine.GIB)))  # fmt: skip
        return [(purpose, target, size, f"set {variable} to a folder with room")
                for purpose, target, variable, size in places]  # fmt: skip

    def build(self, build: engine.ImageBuild, log: engine.BuildLog) -> engine.ImageRecord:
        import shutil  # with bz2 and lzma; a start that builds nothing saves 2 ms

        archive = build.archive
        engine.require_room(self.needs(build, os.environ))
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
                argv = self.exec_argv(build.program, str(temporary), engine.TEST)
                log.run(argv, build.scratch, self._building(os.environ))
            # This takes seconds; the file is not used without its record.
            record = self._recorded(build, temporary)
        return record

    def _recorded(self, build: engine.ImageBuild, sif: Path) -> engine.ImageRecord:
        sif.chmod(0o755)
        argv = self.exec_argv(build.program, str(sif), engine.SHOW_LABELS)
        return replace(record_of(sif), labels=engine.labels(argv, build.name))

    def pull(
        self, build: engine.ImageBuild, reference: engine.ImageReference, log: engine.BuildLog
    ) -> engine.ImageRecord:
        source = f"{'oras' if reference.sif else 'docker'}://{reference}"
        with atomic_write(build.place) as temporary:
            argv = [build.program, "pull", "--force", str(temporary), source]
            log.run(argv, build.scratch, self._building(os.environ))
            if reference.sif and (now := f"sha256:{sha256(temporary)}") != reference.digest:
                evidence = f"{source} is {now}, published was {reference.digest}"
                remedy = "pull it again; if it differs again, build it and tell the publisher"
                raise CannotCreate("The image was not pulled", evidence, remedy)
            record = self._recorded(build, temporary)
        return record

    def build_argv(self, build: engine.ImageBuild, target: Path) -> list[str]:
        """Return the command that makes a SIF of a definition or of an archive."""
        # The definition has the test of the image; it runs once, when the SIF is complete.
        argv = [build.program, "build", "--notest"]
        for name, value in build.arguments.items():
            argv += ["--build-arg", f"{name}={value}"]
        argv += ["--bind", f"{build.wheels}:{engine.WHEELS}:ro"] if build.wheels else []
        archive, definition = build.archive, f"containers/{build.name}.def"
        return [*argv, str(target), f"docker-archive:{archive}" if archive else definition]

    def exec_argv(self, program: str, image: str, argv: Sequence[str]) -> list[str]:
        # Root of a container lacks capabilities that Apptainer asks for without a namespace.
        namespace = ("--userns",) if os.geteuid() == 0 else ()
        return [program, "exec", *namespace, "--contain", "--cleanenv", "--no-home", image, *argv]

    def verify(self, build: engine.ImageBuild, recorded: engine.ImageRecord) -> None:
        now = f"sha256:{sha256(build.place)}" if build.place.is_file() else "gone"
        engine.require_same(build.name, str(build.place), now, f"sha256:{recorded.sha256}")
        if build.test:
            argv = self.exec_argv(build.program, str(build.place), engine.TEST)
            engine.run_test(argv, build.minutes, self._building(os.environ))

    def _building(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a build without variables that would change the image."""
        passed = {f"{prefix}_{name}" for prefix in PREFIXES for name in (*SAFE, *BUILDING)}
        return {k: v for k, v in variables.items() if k in passed or not k.startswith(PREFIXES)}


APPTAINER = SifEngine("apptainer", least=(1, 2))
SINGULARITY = SifEngine("singularity", least=(4, 0))
"""Singularity is SingularityCE or SingularityPro. `least` has build arguments (change logs)."""


def sif_id(path: str | Path) -> str | None:
    """Return "sif:UUID", the id that a build gives to a SIF; None for what is no complete SIF."""
    try:
        with open(path, "rb") as stream:
            head = stream.read(128)
            size = os.fstat(stream.fileno()).st_size
    except OSError:
        return None
    end = sum(int.from_bytes(head[at : at + 8], "little") for at in (112, 120))
    return f"sif:{head[48:64].hex()}" if head[32:41] == b"SIF_MAGIC" and size >= end else None


def record_of(sif: Path) -> engine.ImageRecord:
    """Return the record of a SIF: SHA-256, size and modification time."""
    facts, total = sif.stat(), sha256(sif)
    return engine.ImageRecord(sha256=total, bytes=facts.st_size, mtime_ns=facts.st_mtime_ns)


def difference(sif: Path, recorded: engine.ImageRecord) -> str | None:
    """Return how a SIF differs from its record in size or time of change, or None."""
    facts = sif.stat()
    if recorded.sha256 is None:
        return "it has no record in images.json"
    if facts.st_size != recorded.bytes:
        return f"it has {facts.st_size} bytes, recorded were {recorded.bytes}"
    if facts.st_mtime_ns != recorded.mtime_ns:
        return "it was written after it was recorded"
    return None
