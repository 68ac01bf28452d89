"""The Android archive (AAR) of the library, and a Maven repository that holds it, without Gradle.

The same sources make the same bytes. Facts: the AAR format of Android, the POM and the repository layout of Maven, the
specification of Gradle Module Metadata 1.1.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Mapping
from pathlib import Path

GROUP, NAME = "dev.pocketserve", "pocketserve-bridge"
PARTS = Path(__file__).resolve().parent / "aar"
MIN_SDK = 23
NO_DATE = (1980, 1, 1, 0, 0, 0)
POM_SPACE = "http://maven.apache.org/POM/4.0.0"
HASHES = ("md5", "sha1", "sha256", "sha512")
MARKER = " do_not_remove: published-with-gradle-metadata "
"""The comment by which Gradle knows that a .module file lies beside the POM."""

Contents = Mapping[str, bytes]


def aar(classes: Path) -> Contents:
    """Return the entries of the archive: name -> content.

    Args:
        classes: the library's jar.
    """
    found = {path.relative_to(PARTS).as_posix(): path.read_bytes() for path in PARTS.rglob("*") if path.is_file()}
    resources = sorted(Path(name) for name in found if name.startswith("res/"))
    symbols = "".join(f"int {path.parent.name} {path.stem} 0x0\n" for path in resources)
    metadata = {
        "aarFormatVersion": "1.0",
        "aarMetadataVersion": "1.0",
        "minCompileSdk": MIN_SDK,
        "minCompileSdkExtension": 0,
        "minAndroidGradlePluginVersion": "1.0.0",
    }
    properties = "".join(f"{key}={value}\n" for key, value in metadata.items())
    return {
        **found,
        "classes.jar": classes.read_bytes(),
        "R.txt": symbols.encode(),
        "META-INF/com/android/build/gradle/aar-metadata.properties": properties.encode(),
    }


def files_below(folder: Path, pattern: str = "*") -> Contents:
    """Return the files of a folder as entries of an archive."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob(pattern) if path.is_file()}


def write_zip(path: Path, contents: Contents) -> None:
    """Write an archive whose entries are sorted and carry no date."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, NO_DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, contents[name], zipfile.ZIP_DEFLATED)


def publish(repository: Path, version: str, classes: Path, sources: Path, docs: Path) -> Path:
    """Write the library into a Maven repository, in place of what was there.

    Args:
        repository: its folder.
        classes: the library's jar.
        sources: the folder of its sources.
        docs: the folder of its documentation.

    Returns:
        The folder of this version.
    """
    module = repository.joinpath(*GROUP.split("."), NAME)
    shutil.rmtree(module, ignore_errors=True)
    folder = module / version
    folder.mkdir(parents=True)
    stem = f"{NAME}-{version}"
    archives = {f"{stem}.aar": aar(classes), f"{stem}-sources.jar": files_below(sources, "*.java")}
    for name, contents in {**archives, f"{stem}-javadoc.jar": files_below(docs)}.items():
        write_zip(folder / name, contents)
    (folder / f"{stem}.pom").write_bytes(pom(version))
    (folder / f"{stem}.module").write_text(json.dumps(gradle_module(folder, version), indent=2) + "\n", "utf-8")
    (module / "maven-metadata.xml").write_bytes(versions(version))
    for path in [file for file in module.rglob("*") if file.is_file()]:
        for kind, digest in digests(path).items():
            path.with_name(f"{path.name}.{kind}").write_text(digest, "ascii")
    return folder


def pom(version: str) -> bytes:
    """Return the POM."""
    project = ElementTree.Element("project", {"xmlns": POM_SPACE})
    project.append(ElementTree.Comment(MARKER))
    _add(project, {"modelVersion": "4.0.0", "groupId": GROUP, "artifactId": NAME, "version": version})
    _add(project, {"packaging": "aar", "name": NAME, "description": "Asks a Pocketserve server on the same device."})
    licenses = ElementTree.SubElement(project, "licenses")
    licence = {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0.txt"}
    _add(ElementTree.SubElement(licenses, "license"), licence)
    return _text(project)


def versions(version: str) -> bytes:
    """Return the list of versions that the repository has: this one."""
    metadata = ElementTree.Element("metadata")
    _add(metadata, {"groupId": GROUP, "artifactId": NAME})
    listed = ElementTree.SubElement(metadata, "versioning")
    _add(listed, {"latest": version, "release": version})
    _add(ElementTree.SubElement(listed, "versions"), {"version": version})
    return _text(metadata)


def gradle_module(folder: Path, version: str) -> dict[str, object]:
    """Return the Gradle Module Metadata of the archives in a version's folder."""
    stem = f"{NAME}-{version}"
    library = {"org.gradle.category": "library", "org.gradle.libraryelements": "aar"}
    documents = {"org.gradle.category": "documentation", "org.gradle.usage": "java-runtime"}
    variants = [
        _variant("releaseApi", {**library, "org.gradle.usage": "java-api"}, folder / f"{stem}.aar"),
        _variant("releaseRuntime", {**library, "org.gradle.usage": "java-runtime"}, folder / f"{stem}.aar"),
        *(
            _variant(kind, {**documents, "org.gradle.docstype": kind}, folder / f"{stem}-{kind}.jar")
            for kind in ("sources", "javadoc")
        ),
    ]
    attributes = {"org.gradle.status": "release"}
    component = {"group": GROUP, "module": NAME, "version": version, "attributes": attributes}
    return {"formatVersion": "1.1", "component": component, "variants": variants}


def _variant(name: str, attributes: Mapping[str, str], file: Path) -> dict[str, object]:
    entry = {"name": file.name, "url": file.name, "size": file.stat().st_size, **digests(file)}
    return {
        "name": name,
        "attributes": {**attributes, "org.gradle.dependency.bundling": "external"},
        "files": [entry],
    }


def digests(file: Path) -> dict[str, str]:
    """Return kind -> hexadecimal digest."""
    return {kind: hashlib.new(kind, file.read_bytes()).hexdigest() for kind in HASHES}


def _add(parent: ElementTree.Element, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        ElementTree.SubElement(parent, name).text = text


def _text(element: ElementTree.Element) -> bytes:
    ElementTree.indent(element)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(element, encoding="utf-8") + b"\n"
