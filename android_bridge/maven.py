"""The Android archives (AAR) of the libraries, and a Maven repository that holds them, without Gradle.

The same sources make the same bytes. Facts: the AAR format of Android, the POM and the repository layout of Maven, the
specification of Gradle Module Metadata 1.1.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GROUP, BRIDGE, KTX = "dev.pocketserve", "pocketserve-bridge", "pocketserve-bridge-ktx"
MIN_SDK = 23
POM_SPACE = "http://maven.apache.org/POM/4.0.0"
HASHES = ("md5", "sha1", "sha256", "sha512")
MARKER = " do_not_remove: published-with-gradle-metadata "
"""The comment by which Gradle knows that a .module file lies beside the POM."""

Contents = Mapping[str, bytes]


@dataclass(frozen=True)
class Artifact:
    """One library of the repository.

    Attributes:
        name: its artifact id.
        description: a sentence of its POM.
        classes: its jar.
        parts: the folder of what else its archive holds: manifest, resources, rules for shrinkers.
        documents: ``sources`` and ``javadoc`` -> entries of that archive.
        needs: the libraries that its callers need with it, ``group:name`` -> version.
    """

    name: str
    description: str
    classes: Path
    parts: Path
    documents: Mapping[str, Contents]
    needs: Mapping[str, str] = field(default_factory=dict)


def aar(classes: Path, parts: Path) -> Contents:
    """Return the entries of an archive: name -> content."""
    found = files_below(parts)
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
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob(pattern)
        if path.is_file()
    }


def write_zip(path: Path, contents: Contents) -> None:
    """Write an archive whose entries are sorted and carry no date."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, contents[name], zipfile.ZIP_DEFLATED)


def publish(repository: Path, version: str, artifact: Artifact) -> Path:
    """Write a library into a Maven repository, in place of what was there.

    Returns:
        The folder of this version.
    """
    module = repository.joinpath(*GROUP.split("."), artifact.name)
    shutil.rmtree(module, ignore_errors=True)
    folder = module / version
    folder.mkdir(parents=True)
    stem = f"{artifact.name}-{version}"
    write_zip(folder / f"{stem}.aar", aar(artifact.classes, artifact.parts))
    for kind, contents in artifact.documents.items():
        write_zip(folder / f"{stem}-{kind}.jar", contents)
    (folder / f"{stem}.pom").write_bytes(pom(artifact, version))
    metadata = json.dumps(gradle_module(artifact, folder, version), indent=2) + "\n"
    (folder / f"{stem}.module").write_text(metadata, "utf-8")
    (module / "maven-metadata.xml").write_bytes(versions(artifact.name, version))
    for path in [file for file in module.rglob("*") if file.is_file()]:
        for kind, digest in digests(path).items():
            path.with_name(f"{path.name}.{kind}").write_text(digest, "ascii")
    return folder


def pom(artifact: Artifact, version: str) -> bytes:
    """Return the POM."""
    project = ElementTree.Element("project", {"xmlns": POM_SPACE})
    project.append(ElementTree.Comment(MARKER))
    _add(
        project,
        {
            "modelVersion": "4.0.0",
            "groupId": GROUP,
            "artifactId": artifact.name,
            "version": version,
        },
    )
    _add(
        project,
        {
            "packaging": "aar",
            "name": artifact.name,
            "description": artifact.description,
        },
    )
    licenses = ElementTree.SubElement(project, "licenses")
    licence = {
        "name": "Apache-2.0",
        "url": "https://www.apache.org/licenses/LICENSE-2.0.txt",
    }
    _add(ElementTree.SubElement(licenses, "license"), licence)
    if artifact.needs:
        listed = ElementTree.SubElement(project, "dependencies")
        for name, number in artifact.needs.items():
            group, module = name.split(":")
            kind = {"type": "aar"} if group == GROUP else {}
            texts = {
                "groupId": group,
                "artifactId": module,
                "version": number,
                **kind,
                "scope": "compile",
            }
            _add(ElementTree.SubElement(listed, "dependency"), texts)
    return _text(project)


def versions(name: str, version: str) -> bytes:
    """Return the list of versions that the repository has: this one."""
    metadata = ElementTree.Element("metadata")
    _add(metadata, {"groupId": GROUP, "artifactId": name})
    listed = ElementTree.SubElement(metadata, "versioning")
    _add(listed, {"latest": version, "release": version})
    _add(ElementTree.SubElement(listed, "versions"), {"version": version})
    return _text(metadata)


def gradle_module(artifact: Artifact, folder: Path, version: str) -> dict[str, object]:
    """Return the Gradle Module Metadata of the archives in a version's folder."""
    stem = f"{artifact.name}-{version}"
    library = {"org.gradle.category": "library", "org.gradle.libraryelements": "aar"}
    documents = {
        "org.gradle.category": "documentation",
        "org.gradle.usage": "java-runtime",
    }
    needs = [_need(name, number) for name, number in artifact.needs.items()]
    usages = {"releaseApi": "java-api", "releaseRuntime": "java-runtime"}
    variants = [
        *(
            _variant(
                name,
                {**library, "org.gradle.usage": usage},
                folder / f"{stem}.aar",
                needs,
            )
            for name, usage in usages.items()
        ),
        *(
            _variant(
                kind,
                {**documents, "org.gradle.docstype": kind},
                folder / f"{stem}-{kind}.jar",
            )
            for kind in artifact.documents
        ),
    ]
    attributes = {"org.gradle.status": "release"}
    component = {
        "group": GROUP,
        "module": artifact.name,
        "version": version,
        "attributes": attributes,
    }
    return {"formatVersion": "1.1", "component": component, "variants": variants}


def _need(name: str, version: str) -> dict[str, object]:
    group, module = name.split(":")
    return {"group": group, "module": module, "version": {"requires": version}}


def _variant(
    name: str,
    attributes: Mapping[str, str],
    file: Path,
    needs: Sequence[Mapping[str, object]] = (),
) -> dict[str, object]:
    entry = {
        "name": file.name,
        "url": file.name,
        "size": file.stat().st_size,
        **digests(file),
    }
    return {
        "name": name,
        "attributes": {**attributes, "org.gradle.dependency.bundling": "external"},
        **({"dependencies": list(needs)} if needs else {}),
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
    return (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        + ElementTree.tostring(element, encoding="utf-8")
        + b"\n"
    )
