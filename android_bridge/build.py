"""Builds and tests the libraries for Java and Kotlin and the desktop stand-in, with the JDK and Debian's Android tools.

Usage: python android_bridge/build.py [jar|docs|ktx|aar|style|dex|desktop|test|all] [--output FOLDER]

    jar       the library, compiled against the classes of Android 6 (API 23): pocketserve-bridge.jar
    docs      its documentation; every public member must have one
    ktx       its suspend functions and flows for Kotlin: pocketserve-bridge-ktx.jar
    aar       both as Android archives in a Maven repository, with sources and documentation: maven/
    style     no lambdas, no method references, no star imports: dx and Android 6 cannot have them
    dex       the library as Android's bytecode and back again, to be tested: pocketserve-bridge-dexed.jar
    desktop   the desktop stand-in and the benchmark, for java -jar: pocketserve-desktop.jar
    test      the tests that need no server, on the library and on the one that went through dex
    all       everything (the default)

The tests against a live server are run by ``pytest -m java tests/android lab/tests/codegen``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SOURCES = HERE / "java" / "src"
TESTS = HERE / "java" / "test"
KTX = HERE / "ktx"
DESKTOP = HERE / "desktop"
VECTORS = HERE / "vectors"
DESKTOP_PACKAGE = "dev.pocketserve.desktop"
JSON_JAR = "org.json.jar"
STEP_TIMEOUT_S = 300
TEST_TIMEOUT_S = 600


class BuildError(Exception):
    """A step failed; the text is what its program said."""


@dataclass(frozen=True)
class Outcome:
    """One test method's result.

    Attributes:
        test: ``package.Class.method``.
        trace: why it failed; empty when it passed.
    """

    test: str
    trace: str


def load(script: Path) -> Any:
    """Import a script by its path."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_toolchain() -> Any:
    """Where the tools are, fetched if need be."""
    return load(ROOT / "tools" / "android_toolchain.py").paths()


def load_kotlin() -> Any:
    """Where Kotlin is, fetched if need be; after ``load_toolchain``."""
    return load(ROOT / "tools" / "kotlin_tools.py").paths()


def version() -> str:
    """Return the project's version."""
    return str(load(ROOT / "client/pocketserve_wire/version.py").__version__)


def run(
    command: Sequence[object],
    step: str,
    timeout_s: float = STEP_TIMEOUT_S,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a step's program.

    Raises:
        BuildError: it failed, or took too long.
    """
    words, environment = (
        [str(part) for part in command],
        {**os.environ, **(variables or {})},
    )
    try:
        done = subprocess.run(
            words,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{step} did not end within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise BuildError(
            f"{step} failed (exit code {done.returncode}):\n{done.stdout}{done.stderr}"
        )


class Build:
    """The steps, each of which may be run by itself and makes what it needs.

    Args:
        tools: what ``android_toolchain.paths()`` gives.
        output: a folder for everything that is made.
    """

    def __init__(self, tools: Any, output: Path) -> None:
        self.tools = tools
        self.output = output
        output.mkdir(parents=True, exist_ok=True)

    def library(self) -> Path:
        """The library's jar. javac sees no class that Android 6 does not have."""
        classes = self._empty("classes")
        self._javac(
            classes,
            SOURCES,
            [
                "-bootclasspath",
                str(self.tools.android_jar),
                "-source",
                "8",
                "-target",
                "8",
            ],
        )
        return self._jar(classes, "pocketserve-bridge.jar")

    def docs(self) -> Path:
        """The documentation; a warning is a fault."""
        folder = self._empty("docs")
        command = [
            self.tools.java.with_name("javadoc"),
            "-quiet",
            "-Xdoclint:all",
            "-Xwerror",
            "-notimestamp",
        ]
        command += [
            "-source",
            "8",
            "-bootclasspath",
            self.tools.android_jar,
            "-encoding",
            "UTF-8",
            "-d",
            folder,
        ]
        run([*command, *_java_files(SOURCES)], "docs")
        return folder

    def ktx(self, library: Path | None = None) -> Path:
        """The jar for Kotlin. The compiler sees no class that Android 6 does not have."""
        tools, classes = load_kotlin(), self._empty("ktx-classes")
        seen = self._class_path(
            library or self.library(), tools.libraries, self.tools.android_jar
        )
        command = [
            self.tools.java,
            "-cp",
            tools.compiler,
            "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler",
            "-Werror",
        ]
        command += [
            "-no-jdk",
            "-no-stdlib",
            "-no-reflect",
            "-jvm-target",
            "1.8",
            "-Xexplicit-api=strict",
        ]
        # A class for each SAM conversion: invokedynamic is nothing for Android 6.
        command += [
            "-Xsam-conversions=class",
            "-module-name",
            "pocketserve-bridge-ktx",
            "-cp",
            seen,
            "-d",
            classes,
        ]
        run([*command, KTX / "src"], "kotlinc")
        return self._jar(classes, "pocketserve-bridge-ktx.jar")

    def aar(self) -> Path:
        """The Maven repository; returns its folder."""
        maven, repository, library = (
            load(HERE / "maven.py"),
            self.output / "maven",
            self.library(),
        )
        documents = {
            "sources": maven.files_below(SOURCES, "*.java"),
            "javadoc": maven.files_below(self.docs()),
        }
        what = "Asks a Pocketserve server on the same device."
        maven.publish(
            repository,
            version(),
            maven.Artifact(maven.BRIDGE, what, library, HERE / "aar", documents),
        )
        documents = {"sources": maven.files_below(KTX / "src", "*.kt")}
        needs = {f"{maven.GROUP}:{maven.BRIDGE}": version(), **load_kotlin().versions}
        what = "Suspend functions and flows for pocketserve-bridge."
        ktx = maven.Artifact(
            maven.KTX, what, self.ktx(library), KTX / "aar", documents, needs
        )
        maven.publish(repository, version(), ktx)
        return repository

    def style(self) -> None:
        """Checkstyle over the library and the desktop stand-in."""
        command = [
            self.tools.java,
            "-cp",
            self.tools.checkstyle,
            "com.puppycrawl.tools.checkstyle.Main",
        ]
        run([*command, "-c", HERE / "checkstyle.xml", SOURCES, DESKTOP], "style")

    def dexed(self, *jars: Path) -> Path:
        """The library, or other jars, after a way through Android's bytecode: what a phone runs, on this machine."""
        dex, back = (
            self.output / "classes.dex",
            self.output / "pocketserve-bridge-dexed.jar",
        )
        translator = [
            self.tools.java,
            "-cp",
            self.tools.dx_jar,
            "com.android.dx.command.Main",
        ]
        run(
            [
                *translator,
                "--dex",
                "--min-sdk-version=23",
                f"--output={dex}",
                *(jars or [self.library()]),
            ],
            "dex",
        )
        run([self.tools.enjarify, "--force", "-o", back, dex], "enjarify")
        return back

    def desktop(self, library: Path | None = None) -> Path:
        """The desktop stand-in and the benchmark, on top of the library."""
        classes = self._empty("desktop-classes")
        path = self._class_path(library or self.library(), self.tools.json_jar)
        self._javac(classes, DESKTOP, ["-cp", path, "-source", "8", "-target", "8"])
        shutil.copyfile(self.tools.json_jar, self.output / JSON_JAR)
        jars = f"pocketserve-bridge.jar {JSON_JAR}"
        (classes / "META-INF").mkdir()
        (classes / "META-INF" / "MANIFEST.MF").write_text(
            f"Manifest-Version: 1.0\nMain-Class: {DESKTOP_PACKAGE}.Main\nClass-Path: {jars}\n"
        )
        return self._jar(classes, "pocketserve-desktop.jar")

    def tests(self, library: Path) -> Path:
        """The compiled tests."""
        classes = self._empty("test-classes")
        path = self._class_path(library, self.tools.json_jar, self.tools.junit4)
        self._javac(classes, TESTS, ["-cp", path, "-source", "8", "-target", "8"])
        return classes

    def run_tests(
        self,
        library: Path,
        tests: Path,
        names: Sequence[str],
        properties: Mapping[str, str] | None = None,
    ) -> list[Outcome]:
        """Run test classes against a jar of the library.

        Args:
            names: their full names.
            properties: system properties, such as a live server's ports.
        """
        report = self.output / "report.txt"
        report.unlink(missing_ok=True)
        given = {"pocketserve.vectors": str(VECTORS), **(properties or {})}
        command = self.test_command(library, tests, "RunTests", given)
        run([*command, report, *names], "tests", TEST_TIMEOUT_S)
        outcomes = [
            part.partition("\n")
            for part in report.read_text("utf-8").split("\f")
            if part
        ]
        return [Outcome(test, trace) for test, _, trace in outcomes]

    def test_command(
        self,
        library: Path,
        tests: Path,
        main: str,
        properties: Mapping[str, str] | None = None,
    ) -> list[object]:
        """How to start a program of the tests, such as ``Probe``, on a jar of the library."""
        path = self._class_path(tests, library, self.tools.json_jar, self.tools.junit4)
        given = [f"-D{key}={value}" for key, value in (properties or {}).items()]
        return [
            self.tools.java,
            "-Xmx512m",
            *given,
            "-cp",
            path,
            f"dev.pocketserve.bridge.{main}",
        ]

    def desktop_command(self, main: str = "Main") -> list[str]:
        """How to start a program of the desktop stand-in, once it was built; its jar names the others."""
        return [
            str(self.tools.java),
            "-cp",
            str(self.output / "pocketserve-desktop.jar"),
            f"{DESKTOP_PACKAGE}.{main}",
        ]

    def _javac(self, classes: Path, sources: Path, options: Sequence[str]) -> None:
        # -options: javac 17 warns that -source 8 will go one day.
        command = [
            self.tools.javac,
            "-Xlint:all,-options",
            "-Werror",
            "-encoding",
            "UTF-8",
            "-g",
            "-d",
            classes,
        ]
        run([*command, *options, *_java_files(sources)], "javac")

    def _jar(self, classes: Path, name: str) -> Path:
        jar, maven = self.output / name, load(HERE / "maven.py")
        maven.write_zip(jar, maven.files_below(classes))
        return jar

    def _empty(self, name: str) -> Path:
        folder = self.output / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    @staticmethod
    def _class_path(*parts: object) -> str:
        return os.pathsep.join(str(part) for part in parts)


def test_classes(*, live: bool) -> list[str]:
    """The full names of the test classes: those that need a live server, or those that do not."""
    files = sorted(file.relative_to(TESTS) for file in TESTS.rglob("*Test.java"))
    if not (VECTORS / "valid").is_dir():
        files = [file for file in files if file.stem != "VectorTest"]
    return [
        ".".join(file.with_suffix("").parts)
        for file in files
        if file.stem.endswith("LiveTest") == live
    ]


def _java_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.java"))


def _test(build: Build) -> None:
    tests = build.tests(build.library())
    for library in (build.output / "pocketserve-bridge.jar", build.dexed()):
        outcomes = build.run_tests(library, tests, test_classes(live=False))
        failed = [outcome for outcome in outcomes if outcome.trace]
        print(f"{library.name}: {len(outcomes)} tests, {len(failed)} failed")
        if failed:
            raise BuildError(
                "\n".join(f"{outcome.test}\n{outcome.trace}" for outcome in failed)
            )


STEPS = {
    "jar": Build.library,
    "docs": Build.docs,
    "ktx": Build.ktx,
    "aar": Build.aar,
    "style": Build.style,
    "dex": Build.dexed,
    "desktop": Build.desktop,
    "test": _test,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps that are named; returns the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", nargs="?", choices=[*STEPS, "all"], default="all")
    parser.add_argument(
        "--output",
        type=Path,
        default=HERE / "build",
        help="where results go [android_bridge/build]",
    )
    options = parser.parse_args(arguments)
    try:
        build = Build(load_toolchain(), options.output)
        for name, step in STEPS.items():
            if options.step in (name, "all"):
                made = step(build)  # type: ignore[operator]
                print(f"{name}: {made or 'good'}")
    except (BuildError, RuntimeError) as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
