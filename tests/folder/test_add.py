"""Tests of ``pocketserve add``: files, folders, archives, addresses, the hub, and
failures.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter

import gguf_files
from conftest import MODELS
from folder_files import CONFIG, write_safetensors
from numbered_models import external, sum_of_files
from pocketserve.cli import main
from pocketserve.cli.fetch import bounded_session, open_address
from pocketserve.cli.folder import download, models_folder, sources
from pocketserve.cli.folder import hub as hub_module
from pocketserve.cli.folder.hub_language import INDEX, choose_gguf
from pocketserve_client.bounded import ExchangeLimits
from pocketserve_client.errors import ServerUnreachableError
from stand_in_hub import COMMIT, StandIn, stand_in

DIGITS = (MODELS / "digits" / "digits.tflite").read_bytes()
SHA256 = hashlib.sha256(DIGITS).hexdigest()
LIBRARY = "huggingface_hub"
HUB_CLIENTS = ["https", *([LIBRARY] if importlib.util.find_spec(LIBRARY) else [])]
Add = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Share one state folder, so each file is tried only once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(autouse=True)
def _own_home(
    _no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: Path
) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(state))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the models folder, which the first command creates."""
    return tmp_path / "models"


@pytest.fixture
def add(command: Add, folder: Path) -> Add:
    """Run ``add`` on the folder.

    Return its exit code and output.
    """
    return lambda *words: command("add", *words, "--models-dir", folder)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Serve a hub with one model on loopback."""
    with stand_in() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.repos["org/numbers"] = {
            "onnx/digits.tflite": DIGITS,
            "config.json": b'{"architectures": ["X"]}',
            "labels.txt": b"a\nb\n",
            "onnx/labels.txt": "\n".join("0123456789").encode(),
            "task.py": b"raise SystemExit",
            "LICENSE": b"\n MIT  License\n",
            "README.md": b"# numbers",
        }
        server.plain["/files/of/digits.tflite"] = DIGITS
        yield server


@pytest.fixture(params=HUB_CLIENTS)
def hub_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with and without ``huggingface_hub``."""
    if request.param == "https":
        monkeypatch.setitem(sys.modules, LIBRARY, None)
    return str(request.param)


def manifest(folder: Path, name: str) -> dict[str, Any]:
    """Return the contents of a model's manifest."""
    return tomllib.loads((folder / name / "model.toml").read_text())


def contents(folder: Path) -> list[str]:
    """Return all files of a folder, including hidden ones."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )


def test_add_a_file_once(add: Add, folder: Path) -> None:
    """The file moves into a folder with its provenance.

    The command prints a first request.
    """
    source = MODELS / "digits" / "digits.tflite"
    code, out, err = add(source, "--sha256", SHA256)
    assert (code, err) == (0, "")
    assert contents(folder) == ["digits/digits.tflite", "digits/model.toml"]
    provenance = manifest(folder, "digits")["versions"]["tflite"]["provenance"]
    assert provenance.pop("date").startswith("20")
    assert provenance == {"source": "digits.tflite", "sha256": SHA256}
    assert f"Serve it: pocketserve serve {folder}" in out
    assert (
        "Ask it: pocketserve predict digits input.json  # serving_default_image:0 FP32 [any, 8, 8, 1]\n"
        in out
    )
    assert add(source) == (
        *(1, ""),
        f"pocketserve: {folder} has a model 'digits' already; give it another one by --name NAME, or "
        "`pocketserve remove digits`\n",
    )
    assert add(source, "--name", "two")[0] == 0
    assert (folder / "two" / "digits.tflite").read_bytes() == DIGITS


def test_add_completes_after_its_output_is_closed(folder: Path) -> None:
    """``add … 2>&1 | head`` adds the whole model.

    A model that cannot be added still fails.
    """
    reading, writing = os.pipe()
    os.close(reading)
    words = [
        sys.executable,
        "-m",
        "pocketserve",
        "add",
        MODELS / "digits" / "digits.tflite",
        "--models-dir",
        folder,
    ]
    try:
        codes = []
        for _ in range(2):
            codes.append(
                subprocess.run(
                    words, stdout=writing, stderr=writing, timeout=60
                ).returncode
            )
    finally:
        os.close(writing)
    assert codes == [0, 1]
    assert contents(folder) == ["digits/digits.tflite", "digits/model.toml"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["no-such-file"],
            "'no-such-file' is not a file or folder, no https:// address and no hf:ORG/REPO",
        ),
        (["org/repo"], "no hf:ORG/REPO; did you mean hf:org/repo?"),
        (["FILE", "--name", "a b"], "a model cannot be called 'a b'"),
        (["FILE", "--name", "../b"], "a model cannot be called '../b'"),
        (
            ["FILE", "--sha256", "0" * 64],
            f"its SHA-256 is {SHA256}, and not {'0' * 64}; nothing was added",
        ),
        (["notes.txt"], "notes.txt is not a model file of a known kind"),
        (
            ["page.tflite"],
            "page.tflite: is a web page instead of the model: download the file itself",
        ),
        (["weights.safetensors"], "weights.safetensors holds weights without a model"),
        (
            ["http://example.com/a.tflite"],
            "http://example.com/a.tflite is not an https:// address",
        ),
        (
            ["ftp://example.com/a.tflite"],
            "ftp://example.com/a.tflite is not an https:// address",
        ),
        (["hf:only-one"], "'hf:only-one' is not hf:ORG/REPO"),
        (["damaged.tflite"], "damaged is not added, since it cannot be served"),
    ],
)
def test_rejected_sources_leave_nothing(
    add: Add, folder: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    """Each error is one sentence, and the folder stays empty."""
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "page.tflite").write_text("<!DOCTYPE html><p>Sign in")
    (tmp_path / "weights.safetensors").write_bytes(b"x")
    (tmp_path / "damaged.tflite").write_bytes(DIGITS[:500])
    paths = {
        "FILE": MODELS / "digits" / "digits.tflite",
        **{path.name: path for path in tmp_path.iterdir()},
    }
    code, out, err = add(*(paths.get(word, word) for word in words))
    assert (code, out) == (1, "")
    assert sentence in err
    assert contents(folder) == []


def test_add_a_folder(add: Add, folder: Path, tmp_path: Path) -> None:
    """The manifest keeps its comments, hidden files are left out, and links are
    rejected.
    """
    source = tmp_path / "numbers"
    (source / ".git").mkdir(parents=True)
    (source / ".git" / "HEAD").write_text("x")
    (source / "m.tflite").write_bytes(DIGITS)
    (source / "m.int8.tflite").write_bytes(
        (MODELS / "digits" / "digits.int8.tflite").read_bytes()
    )
    (source / "model.toml").write_text('# mine\ndescription = "numbers"\n')
    (source / "LICENSE.txt").write_text("\nBSD  3-Clause\nmore")
    code, _, err = add(source)
    assert code == 0, err
    assert contents(folder / "numbers") == [
        "LICENSE.txt",
        "m.int8.tflite",
        "m.tflite",
        "model.toml",
    ]
    assert (
        (folder / "numbers" / "model.toml")
        .read_text()
        .startswith('# mine\ndescription = "numbers"\n')
    )
    assert manifest(folder, "numbers")["license"] == "BSD 3-Clause"
    assert {
        v["provenance"]["source"]
        for v in manifest(folder, "numbers")["versions"].values()
    } == {"numbers"}
    (source / "link.txt").symlink_to("/etc/passwd")
    assert "holds links" in add(source, "--name", "again")[2]
    assert contents(folder) == [
        f"numbers/{name}" for name in contents(folder / "numbers")
    ]


def test_a_model_with_code_needs_consent(
    add: Add, folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "own"
    source.mkdir()
    (source / "m.tflite").write_bytes(DIGITS)
    (source / "task.py").write_text("raise SystemExit('it ran')")
    code, out, _ = add(source)
    assert code == 0
    assert (
        "tflite: it contains code, which needs your consent: pocketserve trust "
        f"{folder / 'own'}" in out.replace("\n  ", " ")
    )
    assert "task.py" in contents(folder / "own")


def archive(path: Path, files: dict[str, bytes], **options: Any) -> Path:
    """Return a zip archive with these files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            information = zipfile.ZipInfo(name)
            information.compress_type = zipfile.ZIP_DEFLATED
            information.external_attr = options.get("mode", 0o100644) << 16
            file.writestr(information, content)
    return path


def test_add_an_archive(add: Add, folder: Path, tmp_path: Path) -> None:
    """Outer folders and the files of macOS are dropped."""
    files = {
        "a/b/m.tflite": DIGITS,
        "a/b/x/labels.txt": b"0\n",
        "__MACOSX/a/b/._m.tflite": b"x",
        "a/.DS_Store": b"x",
    }
    source = archive(tmp_path / "numbers.zip", files)
    code, _, err = add(source)
    assert code == 0, err
    assert contents(folder / "numbers") == ["m.tflite", "model.toml", "x/labels.txt"]
    provenance = manifest(folder, "numbers")["versions"]["tflite"]["provenance"]
    assert provenance["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "name",
    [
        "../m.tflite",
        "/m.tflite",
        "a/../../m.tflite",
        "..\\m.tflite",
        "x" * 300 + ".tflite",
    ],
)
def test_an_archive_cannot_write_outside_its_folder(
    add: Add, folder: Path, tmp_path: Path, name: str
) -> None:
    source = archive(tmp_path / "evil.zip", {"ok.tflite": DIGITS, name: DIGITS})
    before = contents(tmp_path)
    assert "would be written outside of its folder" in add(source)[2]
    assert contents(tmp_path) == before


def change_announced_size(path: Path, announced: int, size: int) -> None:
    """Change the unpacked size in an archive's first directory entry."""
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2") + 24
    assert struct.unpack_from("<I", content, at) == (announced,)
    struct.pack_into("<I", content, at, size)
    path.write_bytes(content)


def test_hostile_archives_are_rejected(
    add: Add, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links, too many files, duplicate names, false sizes and more bytes than the disk
    has.
    """
    link = archive(tmp_path / "link.zip", {"m.tflite": b"/etc/passwd"}, mode=0o120777)
    assert "is a link; pack the file itself" in add(link)[2]
    many = archive(tmp_path / "many.zip", {f"f{number}": b"" for number in range(4097)})
    assert "it holds more than 4096 files" in add(many)[2]
    clash = archive(tmp_path / "clash.zip", {"a": b"x", "a/b.tflite": b"x"})
    assert "two of its files have one name" in add(clash)[2]
    bomb = archive(tmp_path / "bomb.zip", {"m.tflite": bytes(1 << 20)})
    change_announced_size(bomb, 1 << 20, 1000)
    assert "is damaged" in add(bomb)[2]
    change_announced_size(bomb, 1000, (1 << 32) - 2)
    monkeypatch.setattr(models_folder, "room", lambda path: 10**9)
    assert "it takes 4.3 GB, and there is room for 1.0 GB" in add(bomb)[2]
    assert contents(folder) == []


def overlapping(path: Path, entries: int) -> Path:
    """Return an archive with one compressed member and this number of entries for it."""
    archive(path, {"f0.txt": bytes(1 << 20), "m.tflite": DIGITS})
    content = path.read_bytes()
    start = content.index(b"PK\1\2")
    end = content.rindex(b"PK\5\6")
    (length,) = struct.unpack_from("<H", content, start + 28)
    head = bytearray(content[start : start + 46])
    more = b""
    for number in range(entries):
        name = b"g%04d" % number
        struct.pack_into("<H", head, 28, len(name))
        more += bytes(head) + name
    assert length == len("f0.txt")
    tail = bytearray(content[end:])
    count, size = struct.unpack_from("<HI", tail, 10)
    struct.pack_into(
        "<HHI", tail, 8, count + entries, count + entries, size + len(more)
    )
    path.write_bytes(content[:end] + more + bytes(tail))
    return path


def test_an_archive_with_overlapping_entries_is_rejected(
    add: Add, folder: Path, tmp_path: Path
) -> None:
    assert (
        "'g0000' overlaps another file of it"
        in add(overlapping(tmp_path / "one.zip", 1))[2]
    )
    assert (
        "overlaps another file of it" in add(overlapping(tmp_path / "many.zip", 90))[2]
    )
    assert contents(folder) == []


def test_an_archive_with_an_extreme_compression_ratio_is_rejected(
    add: Add, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FREE_BYTES", 1 << 20)
    bomb = archive(
        tmp_path / "bomb.zip", {"m.tflite": DIGITS, "zeros": bytes(32 << 20)}
    )
    assert "would unpack to 33.7 MB, which no model does" in add(bomb)[2]
    assert contents(folder) == []
    model = archive(
        tmp_path / "model.zip", {"m.tflite": DIGITS, "zeros": bytes(1 << 20)}
    )
    assert add(model)[0] == 0  # a small archive may unpack to slightly more


def test_add_leaves_free_disk_space(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = models_folder.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        models_folder.shutil, "disk_usage", lambda path: usage._replace(free=300 << 20)
    )
    assert models_folder.room(tmp_path) == 44 << 20


def test_an_archive_with_control_characters_in_a_name_is_rejected(
    add: Add, folder: Path, tmp_path: Path
) -> None:
    source = archive(
        tmp_path / "evil.zip", {"m.tflite": DIGITS, "assets/x\nforged": b"x"}
    )
    assert r"the name 'assets/x\nforged' has control characters" in add(source)[2]
    assert contents(folder) == []


ODD_NAMES = {
    "zero byte": "a%00b.tflite",
    "line end": "a%0ab.tflite",
    "escape": "%1b[2J.tflite",
    "long": "a" * 300 + ".tflite",
    "long in bytes": "%E6%A8%A1" * 90 + ".tflite",
    "without an ending": "%E6%A8%A1" * 90,
    "no UTF-8": "%ff%fe.tflite",
}


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
@pytest.mark.parametrize("place", ["address", "header"])
def test_downloads_with_odd_names(
    add: Add, folder: Path, hub: StandIn, name: str, place: str
) -> None:
    """Each is added with ``--name``.

    Without it, each is added or rejected with one sentence.
    """
    path = "/files/of/digits.tflite"
    if place == "header":
        hub.headers[path] = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{name}"
        }
    else:
        path = f"/files/of/{name}"
        for key in (path, unquote(path)):
            hub.plain[key] = DIGITS
    code, _, err = add(f"{hub.url}{path}", "--name", "m")
    assert code == 0, err
    [file] = (path for path in contents(folder) if path != "m/model.toml")
    assert file.startswith("m/")
    assert file.endswith(".tflite")
    assert file.isprintable()
    code, _, err = add(f"{hub.url}{path}")
    assert "(--debug shows where)" not in err
    assert code == 0 or (
        "a model cannot be called" in err
        and "give it another one by --name NAME" in err
    )


def test_add_the_longest_name_without_an_ending(
    add: Add, folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / ("a" * 255)
    source.write_bytes(DIGITS)
    code, _, err = add(source, "--name", "m")
    assert code == 0, err
    assert contents(folder) == [f"m/{'a' * 200}.tflite", "m/model.toml"]


@pytest.mark.parametrize("size", ["1e999", "-1e999", "NaN", "[1]", '"x"'])
def test_an_invalid_size_in_a_hub_listing_is_rejected(size: str) -> None:
    listing = f'{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "m.tflite", "size": {size}}}]}}'
    with pytest.raises(hub_module.LISTING_FAULTS):
        hub_module._parse_listing("org/numbers", json.loads(listing))


@pytest.mark.parametrize(
    "name", ["a\\nb.tflite", "\\ud800.tflite", "\\u001b[2J.tflite"]
)
def test_an_invalid_name_in_a_hub_listing_is_rejected(name: str) -> None:
    listing = f'{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "{name}"}}, {{"rfilename": "m.tflite"}}]}}'
    assert list(
        hub_module._parse_listing("org/numbers", json.loads(listing)).files
    ) == ["m.tflite"]


def test_a_model_with_a_delegate_prints_how_to_allow_it(
    add: Add, folder: Path, tmp_path: Path, command: Add
) -> None:
    """The printed command names the final folder."""
    source = tmp_path / "own"
    source.mkdir()
    (source / "m.tflite").write_bytes(DIGITS)
    (source / "evil.so").write_bytes(b"\x7fELF")
    (source / "model.toml").write_text(
        '[versions.t]\nfile = "m.tflite"\ndelegate = "evil.so"\n'
    )
    code, out, err = add(source)
    assert code == 0, err
    text = " ".join(out.split())
    assert (
        f"evil.so is code that is not trusted; `pocketserve trust {folder / 'own'}` shows"
        in text
    )
    assert contents(folder) == ["own/evil.so", "own/m.tflite", "own/model.toml"]
    code, out, err = command("trust", folder / "own", "--yes")
    assert code == 0, err
    assert "evil.so" in out


def test_add_from_an_address(add: Add, folder: Path, hub: StandIn) -> None:
    """The noted source has no password and no query.

    The name is the header's, without folders.
    """
    hub.headers["/files/of/digits.tflite"] = {
        "Content-Disposition": 'attachment; filename="../../etc/numbers.tflite"'
    }
    code, _, err = add(
        f"{hub.url.replace('//', '//me:secret@')}/files/of/digits.tflite?key=secret",
        "--sha256",
        SHA256,
    )
    assert code == 0, err
    assert (
        manifest(folder, "numbers")["versions"]["tflite"]["provenance"]["source"]
        == f"{hub.url}/files/of/digits.tflite"
    )
    assert contents(folder) == ["numbers/model.toml", "numbers/numbers.tflite"]
    assert "fetching numbers.tflite" in err


def test_an_interrupted_download_resumes(add: Add, folder: Path, hub: StandIn) -> None:
    """The download resumes several times, each time checked by the strong ETag."""
    hub.cuts += [1000, 500, 0]
    assert add(f"{hub.url}/files/of/digits.tflite")[0] == 1, (
        "the third answer was empty"
    )
    hub.cuts += [700]
    code, _, err = add(f"{hub.url}/files/of/digits.tflite")
    assert code == 0, err
    assert (folder / "digits" / "digits.tflite").read_bytes() == DIGITS
    ranges = [headers.get("Range") for _, _, headers in hub.requests]
    assert ranges == [None, "bytes=1000-", "bytes=1500-", "bytes=1500-", "bytes=2200-"]
    assert {headers["If-Range"] for _, _, headers in hub.requests[1:]} == {
        f'"{SHA256}"'
    }
    assert contents(folder) == ["digits/digits.tflite", "digits/model.toml"]


def test_a_partial_download_is_reported_and_hidden(
    add: Add, folder: Path, hub: StandIn
) -> None:
    """A server finds no model in a partial download.

    A changed file is downloaded anew.
    """
    hub.cuts += [1000, 0]
    code, _, err = add(f"{hub.url}/files/of/digits.tflite")
    assert code == 1
    assert "1.0 kB are kept, and the same command resumes the download" in err
    assert [path.name[0] for path in folder.iterdir()] == ["."]
    hub.plain["/files/of/digits.tflite"] = other = (
        MODELS / "digits" / "digits.int8.tflite"
    ).read_bytes()
    assert add(f"{hub.url}/files/of/digits.tflite")[0] == 0
    assert (folder / "digits" / "digits.tflite").read_bytes() == other


def test_each_piece_of_a_download_has_a_deadline(
    add: Add, folder: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PIECE_S", 0.3)
    monkeypatch.setattr(download, "PIECE_BYTES", 500)
    hub.cuts += [1000, 0]
    hub.stall = threading.Event()
    code, _, err = add(f"{hub.url}/files/of/digits.tflite")
    hub.stall.set()
    assert code == 1
    assert "the same command resumes the download" in err


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        (
            {"Content-Length": "999999999999999"},
            "it takes 1000000.0 GB, and there is room for",
        ),
        (
            {"Content-Encoding": "gzip"},
            "the server compresses it, which was not requested",
        ),
        (
            {"Content-Disposition": 'attachment; filename="a b.tflite"'},
            "a model cannot be called 'a b'",
        ),
    ],
)
def test_response_headers_are_bounded(
    add: Add, folder: Path, hub: StandIn, headers: dict[str, str], sentence: str
) -> None:
    hub.headers["/files/of/digits.tflite"] = headers
    code, _, err = add(f"{hub.url}/files/of/digits.tflite")
    assert code == 1
    assert sentence in err
    assert contents(folder) == []


def test_downloads_of_unknown_size(
    add: Add, folder: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may fill the available space.

    The hub's listing may not.
    """
    hub.headers["/files/of/digits.tflite"] = hub.headers[
        "/api/models/org/numbers/revision/main"
    ] = {"Content-Length": ""}
    assert add(f"{hub.url}/files/of/digits.tflite")[0] == 0
    assert add("hf:org/numbers")[0] == 0
    monkeypatch.setattr(hub_module, "MAX_LISTING_BYTES", 100)
    assert (
        "main has more than 100 B; nothing of it is kept"
        in add("hf:org/numbers", "--name", "two")[2]
    )
    monkeypatch.setattr(download, "room", lambda path: 1000)
    assert (
        "digits.tflite has more than 1.0 kB"
        in add(f"{hub.url}/files/of/digits.tflite", "--name", "two")[2]
    )
    assert not list(folder.glob(".*"))


def test_redirects_are_limited(add: Add, folder: Path, hub: StandIn) -> None:
    """Their number is limited, and they lead only to HTTPS or to this device."""
    hub.redirects |= {
        "/old": "/files/of/digits.tflite",
        "/loop": "/loop",
        "/out": "http://example.com/a.tflite",
    }
    assert add(f"{hub.url}/old", "--name", "numbers")[0] == 0
    assert "it redirects more than 5 times" in add(f"{hub.url}/loop")[2]
    assert (
        "http://example.com/a.tflite is not an https:// address"
        in add(f"{hub.url}/out")[2]
    )
    hub.statuses["/none.tflite"] = 404
    assert (
        "cannot be fetched: the server answers 404" in add(f"{hub.url}/none.tflite")[2]
    )


class _LeadsOut(BaseAdapter):
    """Redirect every request to plain HTTP."""

    def send(self, request: PreparedRequest, *words: Any, **options: Any) -> Response:
        response = Response()
        response.status_code, response.url, response.raw = (
            302,
            str(request.url),
            io.BytesIO(),
        )
        response.headers["Location"] = "http://127.0.0.1:9/a.tflite"
        return response

    def close(self) -> None:
        pass


def test_https_never_redirects_to_http() -> None:
    """Not even to this device: the redirecting server may not be the requested one."""
    with bounded_session(ExchangeLimits()) as session:
        session.mount("https://", _LeadsOut())
        with pytest.raises(
            ServerUnreachableError, match="it redirects to an address without HTTPS"
        ):
            open_address(session, "https://example.com/a.tflite", 5)


@pytest.mark.parametrize(
    ("path", "names", "choice"),
    [
        ("", ["a/saved_model.pb", "a/variables/x.index", "README.md"], "a"),
        ("", ["saved_model.pb", "variables/variables.index"], "."),
        ("", ["tfjs/model.json", "tfjs/group1-shard1of1", "model.py"], "tfjs"),
        ("saved_model.pb", ["saved_model.pb", "m.tflite"], "."),
        ("b/", ["a/m.onnx", "b/m.onnx", "b/m.onnx_data"], "b/m.onnx"),
        ("a/m.onnx", ["a/m.onnx", "a/m.tflite"], "a/m.onnx"),
    ],
)
def test_select_a_model_of_a_repository(
    path: str, names: list[str], choice: str
) -> None:
    """A file, or the folder whose files form a model."""
    repo = hub_module.HubRepo(
        "org/repo", COMMIT, dict.fromkeys(names, hub_module.HubFile(1))
    )
    assert hub_module.choose_file(repo, path) == choice


def test_add_a_model_from_the_hub(
    add: Add, folder: Path, hub: StandIn, hub_client: str
) -> None:
    """One commit is added with its task settings and licence, but without code."""
    hub.card = {"license": "apache-2.0"}
    code, out, err = add("hf:org/numbers", "--sha256", SHA256)
    assert code == 0, err
    files = ["LICENSE", "config.json", "digits.tflite", "labels.txt", "model.toml"]
    assert contents(folder) == [f"numbers/{name}" for name in files]
    assert (folder / "numbers" / "labels.txt").read_text() == "\n".join("0123456789")
    assert manifest(folder, "numbers")["license"] == "apache-2.0"
    provenance = manifest(folder, "numbers")["versions"]["tflite"]["provenance"]
    assert provenance["source"] == "hf:org/numbers/onnx/digits.tflite"
    assert (provenance["revision"], provenance["sha256"]) == (COMMIT, SHA256)
    assert all(COMMIT in path for path in hub.paths() if "resolve" in path)
    assert "pocketserve predict numbers input.json" in out
    assert add("hf:org/numbers/onnx/digits.tflite@refs/pr/1", "--name", "other")[0] == 0
    page = f"{hub.url}/org/numbers/blob/main/onnx/digits.tflite?download=true"
    assert add(page, "--name", "pasted")[0] == 0, "as a browser shows it"
    assert (
        manifest(folder, "pasted")["versions"]["tflite"]["provenance"]["source"]
        == provenance["source"]
    )
    assert add(f"{hub.url}/org/numbers", "--name", "page")[0] == 0


def test_the_token_is_sent_only_to_the_hub(
    add: Add, hub: StandIn, hub_client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token unlocks a private model, but is not sent to the storage host."""
    hub.private.add("org/numbers")
    assert (
        "it is private: then set HF_TOKEN to a token that may"
        in add("hf:org/numbers")[2]
    )
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "or this token may not see it" in add("hf:org/numbers")[2]
    hub.requests.clear()
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert add("hf:org/numbers")[0] == 0
    sent = set()
    for _, path, headers in hub.requests:
        sent.add((path.startswith("/blob/"), headers.get("Authorization")))
    assert {token for is_storage, token in sent if is_storage} == {None}
    assert (False, f"Bearer {hub.token}") in sent


def test_hub_errors_leave_nothing(
    add: Add, folder: Path, hub: StandIn, hub_client: str
) -> None:
    """Each error is a sentence with the way out, and nothing is left behind."""
    hub.gated.add("org/gated")
    hub.repos |= {
        "org/gated": hub.repos["org/numbers"],
        "org/weights": {"model.safetensors": b"x" * 2000},
    }
    hub.repos["org/many"] = {
        f"m_{kind}.tflite": DIGITS for kind in ("fp32", "int8")
    } | {"README.md": b"x"}
    hub.statuses["/api/models/org/broken/revision/main"] = 500
    hub.plain["/api/models/org/other/revision/main"] = b"<html>"
    sentences = {
        "hf:org/none": "org/none at main: there is no such repository, or it is private",
        "hf:org/numbers@v9": "org/numbers at v9: there is no such revision",
        "hf:org/numbers/a.tflite": "org/numbers/a.tflite holds no model file of a supported kind",
        "hf:org/numbers/README.md": "org/numbers/README.md is not a model file",
        "hf:org/weights": "weights alone are not a model: look for an ONNX or TFLite export of it",
        "hf:org/gated": "is behind an agreement: log in there, set HF_TOKEN, and accept it",
        "hf:org/broken": "the hub answers 500",
        "hf:org/other": "does not answer like the hub; check HF_ENDPOINT",
        "hf:org/many": "org/many holds 2 models; name one:\n  hf:org/many/m_fp32.tflite  ",
    }
    for source, sentence in sentences.items():
        code, out, err = add(source)
        assert (code, out) == (1, "") and sentence in err, source
        assert contents(folder) == [], source


def test_content_that_differs_from_the_hub_listing_is_rejected(
    add: Add, folder: Path, hub: StandIn, hub_client: str
) -> None:
    """The length may be right or wrong."""
    for wrong in (bytes(len(DIGITS)), DIGITS + b"x"):
        hub.wrong = wrong
        assert add("hf:org/numbers")[0] == 1
        assert [path for path in contents(folder) if not path.startswith(".")] == []


def test_the_next_command_resumes_a_hub_download(
    add: Add, folder: Path, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, LIBRARY, None)
    hub.cuts += [1 << 20, 1000, 0]  # the listing is whole
    assert "the same command resumes the download" in add("hf:org/numbers")[2]
    assert add("hf:org/numbers")[0] == 0
    ranges = []
    for _, path, headers in hub.requests:
        if "Range" in headers and "/blob/" in path:
            ranges.append(headers["Range"])
    assert ranges == ["bytes=1000-", "bytes=1000-"]
    hub.requests.clear()
    hub.cuts += [
        1 << 20,
        1 << 20,
        0,
    ]
    assert add("hf:org/numbers", "--name", "two")[0] == 1, "the file after the model"
    assert add("hf:org/numbers", "--name", "two")[0] == 0
    assert sum("/blob/" in path for _, path, _ in hub.requests) == 1, (
        "the model was fetched once"
    )
    assert not list(folder.glob(".*"))


def test_add_uses_the_named_folder(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
) -> None:
    """A named folder is used.

    Nothing is added to the embedded models.
    """
    source = str(MODELS / "digits" / "digits.tflite")
    assert main(["add", source]) == 1
    assert (
        "no folder of yours is served; name the models folder: --models-dir FOLDER"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("POCKETSERVE_MODELS_DIR", str(folder))
    assert main(["add", source]) == 0
    assert main(["add", source, "--models-dir", str(folder / "digits")]) == 1
    assert (
        "is one model; name the folder that contains models" in capsys.readouterr().err
    )


def test_the_largest_gguf_file_that_fits_is_taken(
    add: Add,
    folder: Path,
    hub: StandIn,
    hub_client: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = gguf_files.write_tiny(folder.parent / "small.gguf").read_bytes()
    hub.repos["org/chat"] = {
        "m-Q2_K.gguf": small[:-1000],
        "m-Q4_K_M.gguf": small,
        "m-F16.gguf": small + bytes(2**20),
        "mmproj-m.gguf": small,
    }
    monkeypatch.setattr(hub_module, "available_memory", lambda: 2 * 129 * 2**20)
    err = add("hf:org/chat")[2]
    assert "taking m-Q4_K_M.gguf" in err
    assert "the largest that fits into the memory for models" in err
    assert "  hf:org/chat/m-F16.gguf  " in err
    fetched = [path for path in hub.paths() if path.endswith(".gguf")]
    assert all(path.endswith("m-Q4_K_M.gguf") for path in fetched)
    monkeypatch.setattr(hub_module, "available_memory", lambda: 2**20)
    code, out, err = add("hf:org/chat", "--name", "two")
    assert (code, out) == (1, "")
    assert "none of its 3 GGUF files fits" in err
    assert "hf:org/chat/m-Q2_K.gguf" in err


@pytest.mark.parametrize(
    ("names", "choice"),
    [
        (["chat-Q4_K_M.gguf", "Chat-IQ3_XXS.gguf", "chat.bf16.gguf"], True),
        (["Q8_0/m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "m.i1-Q6_K.gguf"], True),
        (["m-q8_0-00001-of-00002.gguf", "m-q4_0.gguf", "mmproj-x-f16.gguf"], True),
        (["chat-Q4_K_M.gguf", "base-Q8_0.gguf"], False),
        (["m-0.5b-q4_0.gguf", "m-1.5b-q4_0.gguf"], False),
        (["7B/ggml-model-q4_0.gguf", "13B/ggml-model-q4_0.gguf"], False),
        (["m-q4_k_m.gguf", "m-v2-q4_k_m.gguf"], False),
    ],
)
def test_gguf_files_of_several_models_are_offered(
    names: list[str], choice: bool
) -> None:
    result = choose_gguf(dict.fromkeys(names, 1), 2**40)
    assert result is not None
    assert (result.file in names) == choice
    assert choice or "of 2 models" in result.reason


@pytest.mark.onnx
def test_the_weights_that_an_onnx_file_names_are_fetched(
    add: Add, folder: Path, hub: StandIn, hub_client: str, tmp_path: Path
) -> None:
    """Whatever their names are; a missing one is a fault of the trial."""
    values = {"sum.onnx_data": 2.0, "other.bin": 3.0}
    sum_of_files(tmp_path, values)
    files = {name: (tmp_path / name).read_bytes() for name in values}
    files["sum.onnx"] = external(tuple(values))
    hub.repos["org/sum"] = {f"onnx/{name}": files[name] for name in files}
    code, _, err = add("hf:org/sum")
    assert code == 0, err
    assert contents(folder / "sum") == sorted([*files, "model.toml"])
    del hub.repos["org/sum"]["onnx/other.bin"]
    code, _, err = add("hf:org/sum", "--name", "less")
    assert code == 1
    assert "other.bin" in err


def folder_in_hub(tmp_path: Path) -> dict[str, bytes]:
    """Return a small language model whose weights' parts have names of their own."""
    places = {}
    for name in ("one", "two"):
        file = f"part-{name}.safetensors"
        write_safetensors(tmp_path / file, {name: np.zeros((20, 20), np.float32)})
        places[name] = file
    files = {name: (tmp_path / name).read_bytes() for name in places.values()}
    files[INDEX] = json.dumps({"weight_map": places}).encode()
    files["config.json"] = json.dumps(CONFIG).encode()
    files["tokenizer.json"] = b"{}"
    return files


def test_the_index_names_the_weights_of_a_hugging_face_folder(
    add: Add, folder: Path, hub: StandIn, hub_client: str, tmp_path: Path
) -> None:
    files = folder_in_hub(tmp_path)
    hub.repos["org/tiny"] = {
        **files,
        "consolidated.safetensors": bytes(2000),
        "pytorch_model.bin": b"x",
        "modeling_own.py": b"raise SystemExit",
    }
    code, _, err = add("hf:org/tiny")
    assert code == 0, err
    assert contents(folder / "tiny") == sorted([*files, "model.toml"])


@pytest.mark.parametrize(
    ("config", "index", "sentence"),
    [
        ({"architectures": ["BertForMaskedLM"]}, {}, "names BertForMaskedLM, which is"),
        ({"architectures": 7, "model_type": []}, {}, "names unknown, which is not"),
        ({"quantization_config": {"quant_method": "awq"}}, {}, "quantised (awq) for"),
        (
            {
                "architectures": ["BertForSequenceClassification"],
                "quantization_config": {"quant_method": "awq"},
            },
            {},
            "quantised",
        ),
        ({"num_hidden_layers": -1}, {}, "num_hidden_layers must be from 1"),
        (
            {},
            {"a": "../x.safetensors"},
            "names '../x.safetensors', which is not a weights",
        ),
        ({}, {"a": "none.safetensors"}, "has no none.safetensors"),
    ],
)
def test_unserved_hugging_face_folders_are_refused_before_their_weights_arrive(
    add: Add,
    folder: Path,
    hub: StandIn,
    tmp_path: Path,
    config: dict[str, Any],
    index: dict[str, str],
    sentence: str,
) -> None:
    files = folder_in_hub(tmp_path)
    content = json.loads(files["config.json"]) | config
    files["config.json"] = json.dumps(content).encode()
    if index:
        files[INDEX] = json.dumps({"weight_map": index}).encode()
    hub.repos["org/tiny"] = files
    code, out, err = add("hf:org/tiny")
    assert (code, out) == (1, "")
    assert sentence in err
    assert not any(path.endswith(".safetensors") for path in hub.paths())
    assert contents(folder) == []


def test_parts_of_a_gguf_model_are_added_together(
    add: Add, folder: Path, tmp_path: Path
) -> None:
    parts = gguf_files.write_parts(tmp_path, "big", 3)
    code, _, err = add(parts[1])
    assert code == 1
    assert "later part of a model; add the first one, big-00001-of-00003.gguf" in err
    assert add(parts[0])[0] == 0
    names = [path.name for path in parts]
    assert sorted(path.name for path in (folder / "big").glob("*.gguf")) == names
    parts[2].unlink()
    code, _, err = add(parts[0], "--name", "two")
    assert code == 1
    assert "big-00003-of-00003.gguf is not beside it" in err


@pytest.mark.parametrize("name", ["big-00001-of-00003", "big-00002-of-00003"])
def test_a_merged_gguf_model_with_the_name_of_a_part_is_added(
    add: Add, folder: Path, tmp_path: Path, name: str
) -> None:
    file = gguf_files.write_tiny(tmp_path / f"{name}.gguf")
    assert add(file)[0] == 0
    assert contents(folder / name) == [file.name, "model.toml"]


def test_parts_of_a_gguf_model_are_one_choice_of_a_repository() -> None:
    parts = [f"q8/m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    files = {name: hub_module.HubFile(10) for name in ("README.md", *parts)}
    repo = hub_module.HubRepo("org/repo", COMMIT, files)
    assert hub_module.choose_file(repo, "") == parts[0]
    assert hub_module._files_of(repo, parts[0]) == parts
    assert hub_module._bytes_of(repo, parts[0]) == 30
