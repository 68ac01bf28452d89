"""Fetch the Android toolchain from Debian packages into ``.android-toolchain/``.

Usage: python tools/android_toolchain.py [--json] [--folder FOLDER] [--mirror URL] [--debs FOLDER]

It needs no root rights and changes no system package: apt works in a separate folder
and checks Debian's signatures there, and packages are only unpacked. It uses the mirror
of the system's apt. A second call does nothing. It needs a Debian system, a JDK 17 or
newer, and Python's standard library.

No single Debian release has everything: the class library of Android 6 and ``dx`` are
only in bullseye, resources with today's manifest attributes only in trixie, and the
tools come from bookworm.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER_VARIABLE = "POCKETSERVE_ANDROID_TOOLCHAIN"
MIRROR_VARIABLE = "POCKETSERVE_DEBIAN_MIRROR"
DEBS_VARIABLE = "POCKETSERVE_ANDROID_DEBS"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT_TIMEOUT_S = 900.0
JDK_OLDEST = 17

PACKAGES: dict[str, tuple[str, ...]] = {
    "bullseye": ("libandroid-23-java", "dalvik-exchange"),
    "bookworm": (
        # aapt2, zipalign, dexdump and their libraries that not every Debian system has
        *(
            "aapt",
            "zipalign",
            "dexdump",
            "p7zip-full",
            "libexpat1",
            "libpng16-16",
            "libzopfli1",
            "libprotobuf-lite32",
        ),
        *(
            "android-libaapt",
            "android-libandroidfw",
            "android-libart",
            "android-libbacktrace",
            "android-libbase",
        ),
        *(
            "android-libcutils",
            "android-liblog",
            "android-libnativebridge",
            "android-libnativeloader",
        ),
        *(
            "android-libutils",
            "android-libziparchive",
            "libatomic1",
            "libbsd0",
            "libmd0",
        ),
        *("apksigner", "libapksig-java", "enjarify", "libandroid-json-java"),
        *("junit4", "libhamcrest-java", "junit5"),
        *(
            "checkstyle",
            "antlr",
            "libantlr-java",
            "libantlr4-runtime-java",
            "libcommons-beanutils-java",
        ),
        *(
            "libcommons-cli-java",
            "libcommons-collections3-java",
            "libcommons-lang3-java",
            "libcommons-logging-java",
        ),
        *(
            "libguava-java",
            "libjavassist-java",
            "libpicocli-java",
            "libreflections-java",
            "libsaxonhe-java",
        ),
        "libslf4j-java",
    ),
    "trixie": ("android-framework-res",),
}
"""Release -> packages."""

PINNED = {
    "libandroid-23-java": "8af1b6df556971dda0a6da3536ea526a838e0c363afcdd454213d8bce94793e3",
    "dalvik-exchange": "8fc128db7c27253d963eb9b33de79b197162a4749d2ba69019b2fd0664cbd7fe",
}
"""SHA-256 of packages from releases that get no updates any more."""

CHECKSTYLE_JARS = (
    *(
        "checkstyle",
        "antlr",
        "antlr4-runtime",
        "commons-beanutils",
        "commons-cli",
        "commons-collections3",
    ),
    *(
        "commons-lang3",
        "commons-logging",
        "guava",
        "javassist",
        "picocli",
        "reflections",
        "Saxon-HE",
    ),
    *("slf4j-api", "slf4j-nop"),
)


class ToolchainError(Exception):
    """The toolchain is not available; the text says why and what to do."""


@dataclass(frozen=True)
class Paths:
    """Where everything is. Programs can be called as they are.

    Attributes:
        android_jar: class library of Android 6 (API 23): for ``javac -bootclasspath``, never for running.
        framework_res: resources of API 33, for ``aapt2 link -I``.
        dx_jar: main class ``com.android.dx.command.Main``.
        json_jar: Android's own org.json, for running on a JVM.
        junit4: class path with JUnit 4 and Hamcrest; main class ``org.junit.runner.JUnitCore``.
        junit5_console_jar: JUnit 5 with its launcher, complete in itself.
        checkstyle: class path; main class ``com.puppycrawl.tools.checkstyle.Main``.
    """

    folder: Path
    android_jar: Path
    framework_res: Path
    dx_jar: Path
    aapt2: Path
    zipalign: Path
    apksigner: Path
    dexdump: Path
    enjarify: Path
    json_jar: Path
    junit4: str
    junit5_console_jar: Path
    checkstyle: str
    java: Path
    javac: Path
    keytool: Path


def paths(
    folder: Path | None = None, mirror: str | None = None, debs: Path | None = None
) -> Paths:
    """Fetch missing parts, and return all paths.

    Args:
        folder: of the toolchain; default POCKETSERVE_ANDROID_TOOLCHAIN, else ``.android-toolchain``.
        mirror: a Debian mirror; default POCKETSERVE_DEBIAN_MIRROR, else that of apt.
        debs: a folder of downloaded packages; default POCKETSERVE_ANDROID_DEBS.

    Raises:
        ToolchainError: it is not available on this machine.
    """
    folder = (folder or toolchain_folder()).absolute()
    java_bin = find_jdk()
    make_once(folder, __file__, lambda: _fill(folder, mirror, debs or fetched_before()))
    jars = folder / "root/usr/share/java"
    found = Paths(
        folder=folder,
        android_jar=jars / "com.android.android-23.jar",
        framework_res=folder / "root/usr/share/android-framework-res/framework-res.apk",
        dx_jar=jars / "com.android.dx.jar",
        aapt2=folder / "bin/aapt2",
        zipalign=folder / "bin/zipalign",
        apksigner=folder / "bin/apksigner",
        dexdump=folder / "bin/dexdump",
        enjarify=folder / "bin/enjarify",
        json_jar=jars / "com.android.json.jar",
        junit4=class_path(jars, ("junit4", "hamcrest")),
        junit5_console_jar=jars / "junit-platform-console-standalone.jar",
        checkstyle=class_path(jars, CHECKSTYLE_JARS),
        java=java_bin / "java",
        javac=java_bin / "javac",
        keytool=java_bin / "keytool",
    )
    _check_complete(found)
    return found


def class_path(folder: Path, names: Iterable[str]) -> str:
    """The jars of those names as one class path."""
    return os.pathsep.join(str(folder / f"{name}.jar") for name in names)


def find_jdk() -> Path:
    """Return the JDK's folder: JAVA_HOME, or that of ``javac``.

    Raises:
        ToolchainError: no JDK, or too old a one.
    """
    home = os.environ.get("JAVA_HOME")
    javac = (
        shutil.which("javac", path=str(Path(home) / "bin"))
        if home
        else shutil.which("javac")
    )
    way_out = f"install a JDK {JDK_OLDEST} (Debian: openjdk-17-jdk-headless), or set JAVA_HOME to one"
    if javac is None:
        raise ToolchainError(
            f"there is no javac {'in JAVA_HOME' if home else 'on the PATH'}; {way_out}"
        )
    told = subprocess.run(
        [javac, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    match = re.search(r"javac (\d+)", told.stdout + told.stderr)
    if match is None or int(match[1]) < JDK_OLDEST:
        raise ToolchainError(
            f"{javac} is too old ({told.stdout.strip() or 'no version'}); {way_out}"
        )
    return Path(javac).absolute().parent


def make_once(folder: Path, script: str, make: Callable[[], None]) -> None:
    """Fill a folder once; concurrent callers wait.

    Args:
        folder: its path matters, too, since programs in it may contain it.
        script: the file that determines the content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "made-from"
    inputs = hashlib.sha256(
        f"{folder}\0{Path(script).read_text('utf-8')}".encode()
    ).hexdigest()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == inputs):
            stamp.unlink(missing_ok=True)
            make()
            stamp.write_text(inputs)


def folder_for(part: str, folder: Path | None) -> Path:
    """Return a folder, by default a part's own."""
    return (folder or toolchain_folder() / part).absolute()


def toolchain_folder() -> Path:
    """Return the folder that the environment names, else the clone's."""
    return Path(os.environ.get(FOLDER_VARIABLE) or ROOT / ".android-toolchain")


def _fill(folder: Path, mirror: str | None, debs: Path | None) -> None:
    require("dpkg-deb")
    store = folder / "debs"
    store.mkdir(exist_ok=True)
    if debs is not None:
        _take_from(debs, store)
    if missing := _missing(store):
        _download(store, missing, mirror)
    _verify(store)
    _unpack(store, folder / "root")
    _write_programs(folder)


# Getting packages


def _deb(store: Path, package: str) -> Path | None:
    return next(iter(sorted(store.glob(f"{package}_*.deb"))), None)


def _missing(store: Path) -> list[str]:
    """``package/release`` for each one that is not there."""
    return [
        f"{name}/{release}"
        for release, names in PACKAGES.items()
        for name in names
        if _deb(store, name) is None
    ]


def _take_from(debs: Path, store: Path) -> None:
    for names in PACKAGES.values():
        for name in names:
            found = _deb(debs, name)
            if found is not None and _deb(store, name) is None:
                shutil.copyfile(found, store / found.name)


def _verify(store: Path) -> None:
    for name, wanted in PINNED.items():
        file = _deb(store, name)
        assert file is not None  # the download would have failed
        if hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
            file.unlink()
            raise ToolchainError(
                f"{file.name} is not the expected file (SHA-256 differs) and was deleted; try again"
            )


def _download(store: Path, wanted: Sequence[str], mirror: str | None) -> None:
    require("apt-get")
    if not KEYRING.exists():
        raise ToolchainError(
            f"{KEYRING} is missing; install the package debian-archive-keyring"
        )
    say(f"fetching {len(wanted)} Debian packages (about 55 MB) …")
    with (
        private_apt(mirror or system_mirror(), tuple(PACKAGES)) as apt,
        tempfile.TemporaryDirectory(dir=store.parent) as arriving,
    ):
        run(
            [*apt, "update"], "Debian's package lists cannot be fetched", Path(arriving)
        )
        run(
            [*apt, "download", *wanted],
            "a Debian package cannot be fetched",
            Path(arriving),
        )
        for file in Path(arriving).glob("*.deb"):
            os.replace(file, store / file.name.replace("%3a", "_"))


def unpack_packages(
    root: Path,
    names: Mapping[str, str | None],
    release: str,
    title: str,
    mirror: str | None,
    debs: Path | None,
) -> None:
    """Fetch Debian packages, unless cached, and unpack them.

    Args:
        names: the expected SHA-256 of each package's file, None for any.
        title: their name in messages.
    """
    require("dpkg-deb")
    files = {name: _deb(debs, name) if debs else None for name in names}
    missing = [f"{name}/{release}" for name, file in files.items() if file is None]
    if missing:
        require("apt-get")
        say(f"fetching {title} from Debian …")
        with private_apt(mirror or system_mirror(), (release,)) as apt:
            run([*apt, "update"], "Debian's package lists cannot be fetched", root)
            run([*apt, "download", *missing], f"{title} cannot be fetched", root)
    for name, expected in names.items():
        file = files[name] or _deb(root, name)
        assert file is not None  # the download would have failed
        _unpack_package(file, expected, root)


def _unpack_package(file: Path, sha256: str | None, root: Path) -> None:
    if sha256 and hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise ToolchainError(f"{file.name} is not the expected file (SHA-256 differs)")
    run(["dpkg-deb", "-x", str(file), str(root)], f"{file.name} cannot be unpacked")


def require(program: str) -> None:
    if shutil.which(program) is None:
        raise ToolchainError(
            f"there is no {program}: the toolchain comes from Debian packages; build on Debian, or run once on a "
            f"Debian machine and copy its folder 'debs' to where {DEBS_VARIABLE} points (dpkg-deb is still needed)"
        )


def system_mirror() -> str:
    """Return the configured Debian mirror, or apt's own."""
    if mirror := os.environ.get(MIRROR_VARIABLE):
        return mirror
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Identifier: Packages"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    for line in told.stdout.splitlines():
        address, release, component = line.split(" ", 2)
        known = (*PACKAGES, "sid", "testing", "stable", "oldstable", "forky")
        if component == "main" and release in known and "security" not in address:
            return address
    raise ToolchainError(
        f"the system's apt sources name no Debian mirror; give the address of one in {MIRROR_VARIABLE}"
    )


@contextmanager
def private_apt(
    mirror: str, releases: Sequence[str], architecture: str | None = None
) -> Iterator[list[str]]:
    """Return ``apt-get`` with state of its own, but the system's proxies.

    Args:
        releases: Debian releases with the packages.
        architecture: such as ``arm64``; None takes the system's own.
    """
    with tempfile.TemporaryDirectory(prefix="pocketserve-apt-") as name:
        base = Path(name)
        for part in ("state/lists/partial", "cache/archives/partial"):
            (base / part).mkdir(parents=True)
        (base / "status").touch()
        lines = [
            f"deb [signed-by={KEYRING}] {mirror} {release} main\n"
            for release in releases
        ]
        (base / "sources.list").write_text("".join(lines))
        settings = {
            "Dir::State": base / "state",
            "Dir::State::status": base / "status",
            "Dir::Cache": base / "cache",
            "Dir::Etc::sourcelist": base / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",  # without it, an unreachable mirror is only a warning
        }
        if architecture is not None:
            settings["APT::Architecture"] = settings["APT::Architectures"] = (
                architecture
            )
        # The system's hooks would clean the system's cache after our update.
        hooks = (
            "APT::Update::Pre-Invoke",
            "APT::Update::Post-Invoke",
            "APT::Update::Post-Invoke-Success",
        )
        text = [f"#clear {hook};\n" for hook in hooks] + [
            f'{key} "{value}";\n' for key, value in settings.items()
        ]
        (base / "apt.conf").write_text("".join(text))
        yield ["apt-get", "--config-file", str(base / "apt.conf"), "--quiet=2"]


def run(command: Sequence[str], problem: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=APT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolchainError(
            f"{problem} within {APT_TIMEOUT_S:.0f} s; look at the network and try again"
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ToolchainError(
            f"{problem} ({said[0] if said else f'exit code {done.returncode}'}); look at the network, name another "
            f"mirror in {MIRROR_VARIABLE}, or a folder with the packages in {DEBS_VARIABLE}"
        )


# Laying it out


def _unpack(store: Path, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for names in PACKAGES.values():
        for name in names:
            run(
                ["dpkg-deb", "-x", str(_deb(store, name)), str(root)],
                f"{name} cannot be unpacked",
            )


def _write_programs(folder: Path) -> None:
    """Small scripts that start each program with the libraries beside it."""
    root = folder / "root"
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    tools = root / "usr/lib/android-sdk/build-tools/debian"
    libraries = set()
    for file in root.rglob("*.so*"):
        if "share" not in file.parts:
            libraries.add(str(file.parent))
    setting = f"LD_LIBRARY_PATH={shlex.quote(os.pathsep.join(sorted(libraries)))}"
    for name in ("aapt2", "zipalign", "dexdump"):
        _write_program(
            programs / name, f"{setting} exec {shlex.quote(str(tools / name))}"
        )
    jars = class_path(root / "usr/share/java", ("apksigner", "apksig"))
    _write_program(
        programs / "apksigner",
        f'exec "${{JAVA_HOME:+$JAVA_HOME/bin/}}java" -cp {shlex.quote(jars)} com.android.apksigner.ApkSignerTool',
    )
    modules = root / "usr/lib/python3/dist-packages"
    python = shlex.quote(sys.executable)
    _write_program(
        programs / "enjarify",
        f"PYTHONPATH={shlex.quote(str(modules))} exec {python} -O -m enjarify.main",
    )


def _write_program(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\n{command} "$@"\n')
    path.chmod(0o755)


def _check_complete(found: Paths) -> None:
    for name, value in dataclasses.asdict(found).items():
        for path in str(value).split(os.pathsep):
            if not Path(path).exists():
                raise ToolchainError(
                    f"{name} is missing ({path}); delete {found.folder} and try again"
                )


def fetched_before() -> Path | None:
    """Return the folder with packages that the environment names."""
    value = os.environ.get(DEBS_VARIABLE)
    if value:
        return Path(value).expanduser()
    return None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the toolchain and print its path."""
    parser = argparse.ArgumentParser(
        description="Fetch the Android toolchain from Debian packages."
    )
    parser.add_argument("--json", action="store_true", help="print the paths as JSON")
    parser.add_argument(
        "--folder",
        type=Path,
        help=f"where to put it [{FOLDER_VARIABLE}, else .android-toolchain]",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help=f"a Debian mirror [{MIRROR_VARIABLE}, else apt's own]",
    )
    parser.add_argument(
        "--debs",
        type=Path,
        metavar="FOLDER",
        help=f"packages fetched before [{DEBS_VARIABLE}]",
    )
    options = parser.parse_args(arguments)
    try:
        found = paths(options.folder, options.mirror, options.debs)
    except ToolchainError as error:
        print(f"android_toolchain: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(
            json.dumps(
                {name: str(value) for name, value in dataclasses.asdict(found).items()},
                indent=2,
            )
        )
    else:
        print(f"the Android toolchain is in {found.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
