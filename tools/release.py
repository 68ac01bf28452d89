"""Build a release twice, and keep it if both are equal.

Usage: python tools/release.py     (``make release``, which makes the environment that this runs in)

Wheels, source distributions, npm package, jar, Maven repository with the AAR, APK,
documentation, an SBOM (CycloneDX) and SHA256SUMS. Nothing is published. The APK is
signed with the public debug key: sign it anew to publish it.
"""

from __future__ import annotations

import filecmp
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pocketserve_wire import __version__

ROOT = Path(__file__).resolve().parents[1]
STEP_TIMEOUT_S = 1800.0
DISTRIBUTIONS = ("client", ".", "lab")
"""Folders with a pyproject.toml of their own."""

SIBLING = r'"(pocketserve(?:-client)?)"(?=,\n)'
"""Another distribution of the project among the requirements of one."""

CHANGELOG_ENTRY = r"^## {version}( |$)"


class ReleaseError(Exception):
    """There is no release; the text says why."""


def check(root: Path, version: str) -> None:
    """Look whether a clone is ready for a release.

    Raises:
        ReleaseError: files differ from the last commit, or CHANGELOG.md has no entry of the version.
    """
    if changed := _output(root, "git", "status", "--porcelain"):
        raise ReleaseError(
            f"commit or remove these first: {', '.join(line[3:] for line in changed.splitlines())}"
        )
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(
        CHANGELOG_ENTRY.format(version=re.escape(version)), changes, re.MULTILINE
    ):
        raise ReleaseError(
            f"CHANGELOG.md has no entry '## {version}'; write what changed"
        )


def export(root: Path, folder: Path) -> Path:
    """Write the files of the last commit into a new folder."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=root, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def build(sources: Path, output: Path, version: str, epoch: int) -> None:
    """Build everything but the checksums.

    Args:
        sources: an exported commit; it is changed by the steps.
        output: an empty folder.
        epoch: the commit's time in seconds, which stands for all times.
    """
    variables = {
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    toolchain = os.environ.get("POCKETSERVE_ANDROID_TOOLCHAIN") or str(
        ROOT / ".android-toolchain"
    )
    variables["POCKETSERVE_ANDROID_TOOLCHAIN"] = toolchain
    python = sys.executable
    bridge = sources / "build" / "bridge"
    pin(sources, version)
    for folder in DISTRIBUTIONS:
        _run(
            sources / folder,
            variables,
            python,
            "-m",
            "hatchling",
            "build",
            "--directory",
            output,
        )
    javascript = sources / "client" / "js"
    _run(javascript, variables, "npm", "pack", "--silent", "--pack-destination", output)
    for step in ("jar", "aar"):
        _run(
            sources,
            variables,
            python,
            "android_bridge/build.py",
            step,
            "--output",
            bridge,
        )
    shutil.copyfile(
        bridge / "pocketserve-bridge.jar", output / f"pocketserve-bridge-{version}.jar"
    )
    pack(bridge / "maven", output / f"pocketserve-bridge-{version}-maven.zip")
    apk = output / f"pocketserve-companion-{version}.apk"
    _run(sources, variables, python, "android_bridge/build_apk.py", "--output", apk)
    site = sources / "build" / "site"
    words = [
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        "-c",
        "docs",
        "-d",
        sources / "build" / "doctrees",
        ".",
        site,
    ]
    _run(sources, variables, python, "-m", "sphinx", *words)
    pack(site, output / f"pocketserve-{version}-docs.zip")
    write_parts(output, version, epoch)


def pin(sources: Path, version: str) -> None:
    """Make each distribution require the others in its own version.

    In a clone the server takes the client from its folder, and the lab any server.
    """
    for folder in DISTRIBUTIONS:
        file = sources / folder / "pyproject.toml"
        text = file.read_text(encoding="utf-8")
        file.write_text(re.sub(SIBLING, rf'"\1=={version}"', text), encoding="utf-8")


def pack(folder: Path, archive: Path) -> None:
    """Pack a folder into a zip file, sorted and without dates."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            entry = zipfile.ZipInfo(f"{archive.stem}/{file.relative_to(folder)}")
            entry.external_attr = 0o644 << 16
            target.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)


def write_parts(output: Path, version: str, epoch: int) -> None:
    """Write the SBOM.

    It has the files of the release with their hashes, the packages that the server and
    the lab need, as tested, and the libraries of the web page, which the wheel contains.

    Frameworks are not in it: each is the choice of whoever installs it, and none is part of a file here.
    """
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"pocketserve-{version}-{epoch}")
    )
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    components = {name: _component(name) for name in requirements("pocketserve-lab")}
    root = components.pop("pocketserve")
    root.type = ComponentType.APPLICATION
    root.components = [_file(path) for path in sorted(output.iterdir())]
    bom.metadata.component = root
    bom.components = [*components.values(), *_page_libraries()]
    parts = {"pocketserve": root, **components}
    for name, component in parts.items():
        bom.register_dependency(component, [parts[need] for need in needs(name)])
    (output / f"pocketserve-{version}.cdx.json").write_text(
        JsonV1Dot6(bom).output_as_string(indent=2) + "\n", "utf-8"
    )


def requirements(name: str) -> list[str]:
    """Return a package and its dependencies in a stable order."""
    names = {name}
    queue = [name]
    while queue:
        fresh = set(needs(queue.pop())) - names
        names |= fresh
        queue += sorted(fresh)
    return sorted(names)


def needs(name: str) -> list[str]:
    """Return the packages that one needs here, without its extras."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    texts = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    return sorted(
        {
            canonicalize_name(r.name)
            for r in texts
            if r.marker is None or r.marker.evaluate({"extra": ""})
        }
    )


def _component(name: str) -> Any:
    """Return an installed package as an SBOM component."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    metadata = importlib.metadata.metadata(name)
    version = metadata["Version"]
    classes = [
        text
        for text in metadata.get_all("Classifier", ())
        if text.startswith("License ::")
    ]
    text = (
        metadata["License-Expression"]
        or metadata["License"]
        or "".join(classes[:1]).rpartition(" :: ")[2]
    )
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={version}",
        purl=PackageURL("pypi", name=name, version=version),
        licenses=[LicenseFactory().make_from_string(text)] if text else [],
    )


def _page_libraries() -> list[Any]:
    """Return the web page's libraries as SBOM components."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    return [
        Component(
            name=name,
            version=package["version"],
            type=ComponentType.LIBRARY,
            bom_ref=f"npm:{name}=={package['version']}",
            purl=PackageURL("npm", name=name, version=package["version"]),
            licenses=[LicenseFactory().make_from_string(package["licence"])],
        )
        for name, package in json.loads(
            (ROOT / "tools" / "vendor.json").read_text("utf-8")
        ).items()
    ]


def _file(path: Path) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType

    digest = HashType(alg=HashAlgorithm.SHA_256, content=_sha256(path))
    return Component(
        name=path.name, type=ComponentType.FILE, bom_ref=path.name, hashes=[digest]
    )


def differences(first: Path, second: Path) -> list[str]:
    """Return the names of files that differ between folders."""
    names = sorted(
        {path.name for folder in (first, second) for path in folder.iterdir()}
    )
    _, unequal, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    return sorted(unequal + missing)


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS of all files, as ``sha256sum --check`` reads it."""
    lines = []
    for path in sorted(folder.iterdir()):
        lines.append(f"{_sha256(path)}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _output(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(
            f"{' '.join(command[:2])} failed; a release is made in a clone: {done.stderr.strip()}"
        )
    return done.stdout


def _run(folder: Path, variables: Mapping[str, str], *command: object) -> None:
    words: Sequence[str] = [str(part) for part in command]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise ReleaseError(
            f"{' '.join(words[1:4])} did not end within {STEP_TIMEOUT_S:.0f} s"
        ) from None
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(words[1:4])} failed:\n{done.stdout}")


def release(root: Path, version: str, target: Path) -> None:
    """Build the last commit's release twice, and keep one.

    Raises:
        ReleaseError: the clone is not ready, a step failed, or the two differ.
    """
    check(root, version)
    epoch = int(_output(root, "git", "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory(prefix="pocketserve-release-") as name:
        folders = [Path(name, number) for number in ("first", "second-build")]
        for number, folder in enumerate(folders, 1):
            print(f"building {version}, {number} of 2 …", flush=True)
            (folder / "release").mkdir(parents=True)
            build(export(root, folder / "sources"), folder / "release", version, epoch)
        first, second = (folder / "release" for folder in folders)
        if unequal := differences(first, second):
            raise ReleaseError(f"two builds differ: {', '.join(unequal)}")
        write_sums(first)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(first, target)


def main() -> int:
    """Build; returns the exit code."""
    target = ROOT / "build" / "release"
    try:
        release(ROOT, __version__, target)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(target.iterdir()):
        print(f"{path.stat().st_size:12,}  {path.relative_to(ROOT)}")
    print("both builds were equal, byte by byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
