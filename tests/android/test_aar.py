"""Build, merge and compile the Android archive as Gradle would."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, Server

from .conftest import load_script

pytestmark = pytest.mark.java

SCRIPT = load_script(ROOT / "android_bridge" / "build.py")
ANDROID = "{http://schemas.android.com/apk/res/android}"
POM = "{http://maven.apache.org/POM/4.0.0}"
ENTRIES = {
    *(
        "AndroidManifest.xml",
        "classes.jar",
        "R.txt",
        "proguard.txt",
        "res/xml/pocketserve_network_security.xml",
    ),
    "META-INF/com/android/build/gradle/aar-metadata.properties",
}
VERSION = SCRIPT.version()
APP = """<manifest xmlns:android="http://schemas.android.com/apk/res/android"
    xmlns:tools="http://schemas.android.com/tools" package="com.example.app">
    <uses-sdk android:minSdkVersion="{min_sdk}" android:targetSdkVersion="36" />
    <application android:label="App" {attributes} />
</manifest>
"""
CONSUMER = """
import dev.pocketserve.bridge.PocketServe;
import dev.pocketserve.bridge.Transport;
import java.io.File;
import java.nio.file.Files;

public class Consumer {
    public static void main(String[] args) throws Exception {
        try (PocketServe server = PocketServe.builder().transport(Transport.valueOf(args[0]))
                .socketPort(Integer.parseInt(args[1])).httpPort(Integer.parseInt(args[2]))
                .tokenFile(new File(args[3])).build()) {
            byte[] picture = Files.readAllBytes(new File(args[4]).toPath());
            System.out.println(server.classify("digits", picture).getLabels().get(0).getLabel());
        }
    }
}
"""

Merge = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(toolchain: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run the build, whose output folder contains the repository."""
    build = SCRIPT.Build(toolchain, tmp_path_factory.mktemp("aar"))
    build.aar()
    return build


@pytest.fixture(scope="module")
def folder(built: Any) -> Path:
    """Return the folder of this version in Maven's layout."""
    return Path(built.output) / "maven/dev/pocketserve/pocketserve-bridge" / VERSION


@pytest.fixture(scope="module")
def ktx(built: Any) -> Path:
    """Return the folder of the library for Kotlin."""
    return Path(built.output) / "maven/dev/pocketserve/pocketserve-bridge-ktx" / VERSION


@pytest.fixture(scope="module")
def unpacked(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the archive that the Gradle metadata names for compiling."""
    module = json.loads((folder / f"pocketserve-bridge-{VERSION}.module").read_text())
    usages = {
        variant["attributes"].get("org.gradle.usage"): variant
        for variant in module["variants"]
    }
    target = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(folder / usages["java-api"]["files"][0]["url"]) as archive:
        assert set(archive.namelist()) == ENTRIES
        archive.extractall(target)
    return target


@pytest.fixture
def merge(toolchain: Any, app_tools: Any, unpacked: Path, tmp_path: Path) -> Merge:
    """Merge an app's manifest with the library's, by Android's merger.

    The result is ``merged.xml``.
    """

    def run(
        attributes: str = "", min_sdk: int = 23
    ) -> subprocess.CompletedProcess[str]:
        app = tmp_path / "AndroidManifest.xml"
        app.write_text(APP.format(attributes=attributes, min_sdk=min_sdk))
        command = [
            str(toolchain.java),
            "-cp",
            app_tools.manifest_merger,
            "com.android.manifmerger.Merger",
        ]
        command += ["--main", str(app), "--libs", str(unpacked / "AndroidManifest.xml")]
        command += ["--out", str(tmp_path / "merged.xml")]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.mark.parametrize("name", ["pocketserve-bridge", "pocketserve-bridge-ktx"])
def test_every_file_has_its_digests(built: Any, name: str) -> None:
    folder = Path(built.output) / "maven/dev/pocketserve" / name / VERSION
    kinds = ("md5", "sha1", "sha256", "sha512")
    ends = [
        ".aar",
        ".pom",
        ".module",
        "-sources.jar",
        *(["-javadoc.jar"] if name == "pocketserve-bridge" else []),
    ]
    files = [folder / f"{name}-{VERSION}{end}" for end in ends]
    assert {path.name for path in folder.iterdir()} == {
        name
        for file in files
        for name in (file.name, *(f"{file.name}.{kind}" for kind in kinds))
    }
    for file in [*files, folder.parent / "maven-metadata.xml"]:
        for kind in kinds:
            assert (
                file.with_name(f"{file.name}.{kind}").read_text()
                == hashlib.new(kind, file.read_bytes()).hexdigest()
            )


def test_pom_and_metadata_name_the_same_library(folder: Path) -> None:
    """Gradle reads the .module file only if the POM mentions it; Maven reads the POM
    alone.
    """
    stem = f"pocketserve-bridge-{VERSION}"
    text = (folder / f"{stem}.pom").read_text()
    assert "<!-- do_not_remove: published-with-gradle-metadata -->" in text
    project = ElementTree.fromstring(text)
    named = [
        project.findtext(f"{POM}{name}")
        for name in ("groupId", "artifactId", "version", "packaging")
    ]
    assert named == ["dev.pocketserve", "pocketserve-bridge", VERSION, "aar"]
    assert project.find(f"{POM}dependencies") is None
    module = json.loads((folder / f"{stem}.module").read_text())
    assert module["formatVersion"] == "1.1"
    assert [
        module["component"][name] for name in ("group", "module", "version")
    ] == named[:3]
    for variant in module["variants"]:
        (file,) = variant["files"]
        content = (folder / file["url"]).read_bytes()
        assert (file["size"], file["sha256"]) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
    listed = ElementTree.fromstring((folder.parent / "maven-metadata.xml").read_text())
    assert [found.text for found in listed.iter("version")] == [VERSION]


def dependencies_of_pom(file: Path) -> list[tuple[str | None, ...]]:
    """Return group, artifact, version, scope and type of each dependency."""
    project = ElementTree.fromstring(file.read_text())
    names = ("groupId", "artifactId", "version", "scope", "type")
    listed = []
    for found in project.iter(f"{POM}dependency"):
        listed.append(tuple(found.findtext(f"{POM}{name}") for name in names))
    return listed


def entries_of(file: Path) -> set[str]:
    """Return the names in an archive."""
    with zipfile.ZipFile(file) as archive:
        return set(archive.namelist())


def test_the_library_for_kotlin_names_its_dependencies(
    ktx: Path, kotlin_tools: Any
) -> None:
    """POM and metadata agree."""
    needs = {("dev.pocketserve", "pocketserve-bridge", VERSION)}
    for name, version in kotlin_tools.versions.items():
        group, artifact = name.split(":")
        needs.add((group, artifact, version))
    assert ("org.jetbrains.kotlinx", "kotlinx-coroutines-core", "1.8.0") in needs

    stem = f"pocketserve-bridge-ktx-{VERSION}"
    listed = dependencies_of_pom(ktx / f"{stem}.pom")
    assert {found[:3] for found in listed} == needs
    assert {found[3] for found in listed} == {"compile"}
    assert [found[4] for found in listed] == ["aar", None, None]

    module = json.loads((ktx / f"{stem}.module").read_text())
    variants = {variant["name"]: variant for variant in module["variants"]}
    assert set(variants) == {"releaseApi", "releaseRuntime", "sources"}
    for name in ("releaseApi", "releaseRuntime"):
        found = set()
        for each in variants[name]["dependencies"]:
            found.add(
                (
                    each["group"],
                    each["module"],
                    each["version"]["requires"],
                )
            )
        assert found == needs


def test_the_archives_of_the_library_for_kotlin_are_complete(ktx: Path) -> None:
    stem = f"pocketserve-bridge-ktx-{VERSION}"
    network_rules = "res/xml/pocketserve_network_security.xml"
    assert entries_of(ktx / f"{stem}.aar") == ENTRIES - {network_rules}
    folder = ROOT / "android_bridge/ktx/src"
    sources = {str(path.relative_to(folder)) for path in folder.rglob("*.kt")}
    assert entries_of(ktx / f"{stem}-sources.jar") == sources


def test_sources_and_documentation_are_complete(folder: Path) -> None:
    stem = f"pocketserve-bridge-{VERSION}"
    sources = ROOT / "android_bridge/java/src"
    with zipfile.ZipFile(folder / f"{stem}-sources.jar") as archive:
        assert set(archive.namelist()) == {
            str(path.relative_to(sources)) for path in sources.rglob("*.java")
        }
    with zipfile.ZipFile(folder / f"{stem}-javadoc.jar") as archive:
        assert {"index.html", "dev/pocketserve/bridge/PocketServe.html"} <= set(
            archive.namelist()
        )


def test_two_builds_are_equal(built: Any, toolchain: Any, tmp_path: Path) -> None:
    again = SCRIPT.Build(toolchain, tmp_path)
    again.aar()
    found = [
        {
            p.relative_to(o): p.read_bytes()
            for p in (o / "maven").rglob("*")
            if p.is_file()
        }
        for o in (built.output, tmp_path)
    ]
    assert found[0] == found[1]
    assert found[0]


def test_an_app_gets_the_librarys_permissions(
    merge: Merge, unpacked: Path, toolchain: Any, tmp_path: Path
) -> None:
    """It gets two permissions and plain HTTP to this device only; aapt2 links the
    result.
    """
    done = merge()
    merged = tmp_path / "merged.xml"
    assert merged.exists(), done.stdout + done.stderr
    root = ElementTree.parse(merged).getroot()
    permissions = {
        found.get(f"{ANDROID}name") for found in root.iter("uses-permission")
    }
    assert permissions == {
        f"android.permission.{name}" for name in ("INTERNET", "USE_LOOPBACK_INTERFACE")
    }
    application = root.find("application")
    assert application is not None
    assert len(application) == 0
    assert (
        application.get(f"{ANDROID}networkSecurityConfig")
        == "@xml/pocketserve_network_security"
    )
    compiled = tmp_path / "resources.zip"
    linked = tmp_path / "app.apk"
    aapt2 = str(toolchain.aapt2)
    subprocess.run(
        [aapt2, "compile", "--dir", unpacked / "res", "-o", compiled],
        check=True,
        timeout=60,
    )
    symbols = tmp_path / "R.txt"
    command = [
        aapt2,
        "link",
        "-o",
        linked,
        "-I",
        toolchain.framework_res,
        "--manifest",
        merged,
        compiled,
    ]
    subprocess.run([*command, "--output-text-symbols", symbols], check=True, timeout=60)
    names = [line.rsplit(" ", 1)[0] for line in symbols.read_text().splitlines()]
    assert names == [
        line.rsplit(" ", 1)[0] for line in (unpacked / "R.txt").read_text().splitlines()
    ]
    domain = (
        ElementTree.parse(unpacked / "res/xml/pocketserve_network_security.xml")
        .getroot()
        .findall(".//domain")
    )
    assert [(found.text, found.get("includeSubdomains")) for found in domain] == [
        ("127.0.0.1", "false")
    ]


def test_an_app_may_have_its_own_network_configuration(
    merge: Merge, tmp_path: Path
) -> None:
    own = 'android:networkSecurityConfig="@xml/own"'
    done = merge(own)
    assert not (tmp_path / "merged.xml").exists()
    assert "tools:replace" in done.stdout + done.stderr
    merge(f'{own} tools:replace="android:networkSecurityConfig"')
    application = (
        ElementTree.parse(tmp_path / "merged.xml").getroot().find("application")
    )
    assert application is not None
    assert application.get(f"{ANDROID}networkSecurityConfig") == "@xml/own"


def test_an_app_for_an_older_android_is_refused(merge: Merge, tmp_path: Path) -> None:
    done = merge(min_sdk=21)
    assert not (tmp_path / "merged.xml").exists()
    assert (
        "minSdkVersion 21 cannot be smaller than version 23"
        in done.stdout + done.stderr
    )


@pytest.mark.live
@pytest.mark.parametrize("transport", ["SOCKET", "HTTP"])
def test_a_consumer_compiles_and_gets_answers(
    transport: str, toolchain: Any, unpacked: Path, server: Server, tmp_path: Path
) -> None:
    source = tmp_path / "Consumer.java"
    classes = tmp_path / "classes"
    source.write_text(CONSUMER)
    path = f"{unpacked / 'classes.jar'}:{toolchain.json_jar}:{classes}"
    compiler = [str(toolchain.javac), "-cp", path, "-d", str(classes), str(source)]
    subprocess.run(compiler, check=True, timeout=120)
    picture = tmp_path / "seven.png"
    shutil.copyfile(MODELS / "digits/samples/7.png", picture)
    command = [
        str(toolchain.java),
        "-cp",
        path,
        "Consumer",
        transport,
        str(server.ready["socket"]["port"]),
    ]
    command += [
        str(server.ready["http"]["port"]),
        server.ready["token_file"],
        str(picture),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "7", done.stderr
