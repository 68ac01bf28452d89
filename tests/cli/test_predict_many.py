"""Tests of ``predict`` with many inputs and every output format."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conftest import MODELS, Server
from pocketserve.cli import main
from pocketserve.cli.commands.predict import Steps
from pocketserve.cli.fetch import fetch
from pocketserve.cli.plain import plain_lines
from pocketserve.cli.raw_inputs import read_inputs
from pocketserve.terminal.errors import CommandError
from pocketserve_client import ServerUnreachableError

SAMPLES = MODELS / "digits" / "samples"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("POCKETSERVE_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``predict`` in this process.

    Return its exit code and output.
    """

    def command(*words: object) -> tuple[int, str, str]:
        code = main(["predict", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


@pytest.fixture(params=["local", "http", "socket"])
def where(request: pytest.FixtureRequest, server: Server) -> list[str]:
    """Return options that select the server or this process."""
    if request.param == "local":
        return ["--local", "--models-dir", str(MODELS)]
    url = (
        server.url
        if request.param == "http"
        else f"socket://127.0.0.1:{server.socket_port}"
    )
    return ["--url", url, "--token-file", str(server.log.with_name("token"))]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Create digits, a text file, and a hidden file and folder."""
    folder = tmp_path / "photos"
    (folder / "inner").mkdir(parents=True)
    for name in ("3.png", "7.png", "9.png"):
        shutil.copy(SAMPLES / name, folder)
    (folder / ".hidden").write_text("x")
    (folder / "notes.txt").write_text("not a picture")
    return folder


def test_predict_a_folder(run: Run, where: list[str], photos: Path) -> None:
    """Files are in alphabetical order.

    An error in one does not stop the others.
    """
    code, out, err = run(
        "digits",
        photos,
        "--jsonl",
        "--top-k",
        1,
        *where,
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [os.path.basename(line["source"]) for line in lines] == [
        "3.png",
        "7.png",
        "9.png",
        "notes.txt",
    ]
    assert [line["predictions"][0]["label"] for line in lines[:3]] == ["3", "7", "9"]
    assert "not a picture" in lines[3]["error"]
    assert set(lines[3]) == {"source", "error"}
    assert err == f"pocketserve: {photos / 'notes.txt'}: {lines[3]['error']}\n"


def test_every_form_of_answer(run: Run, where: list[str], photos: Path) -> None:
    """Tables, one document and CSV contain the same answers."""
    files = [photos / "3.png", photos / "7.png"]
    first, second = map(str, files)
    code, out, err = run("digits", *files, "--top-k", 2, *where)
    assert code == 0
    assert err == ""
    blocks = out.strip().split(f"{second}:\n")
    assert len(blocks) == 2
    assert blocks[0].startswith(f"{first}:\nLABEL")
    assert blocks[1].startswith("LABEL")

    _, out, _ = run("digits", *files, "--json", *where)
    documents = json.loads(out)
    assert [document["source"] for document in documents] == [first, second]

    _, out, _ = run(
        "digits",
        *files,
        "--csv",
        "--top-k",
        2,
        *where,
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["source"] for row in rows] == [first, first, second, second]
    assert list(rows[0]) == ["source", "label", "index", "score"]
    assert rows[0]["label"] == "3"
    assert rows[2]["label"] == "7"
    assert float(rows[0]["score"]) == documents[0]["predictions"][0]["score"]


def test_plain_prints_a_line_for_each_input(
    run: Run, where: list[str], photos: Path
) -> None:
    """The line is the best label, or a table's value."""
    files = (SAMPLES / "3.png", SAMPLES / "7.png")
    assert run("digits", *files, "--plain", *where) == (0, "3\n7\n", "")
    _, out, _ = run(
        "digits",
        files[1],
        "--plain",
        "--top-k",
        2,
        *where,
    )
    first, second = out.splitlines()
    assert first == "7"
    assert second in set("012345689")
    code, out, _ = run(
        "petals",
        "5.1",
        "3.5",
        "1.4",
        "--plain",
        *where,
    )
    assert code == 0
    assert float(out) == pytest.approx(0.23, abs=0.1)


@pytest.mark.parametrize(
    ("answer", "show_all", "expected"),
    [
        ({"predictions": []}, False, [""]),
        ({"predictions": [{"label": "a\n\x1b[1mb"}]}, False, ["a \\x1b[1mb"]),
        ({"predictions": [{"answer": "in oslo", "start": 3}]}, False, ["in oslo"]),
        ({"predictions": [{"vector": [1.5]}]}, False, ['{"vector": [1.5]}']),
        ({"text": "one two", "predictions": [{"text": "one"}]}, False, ["one two"]),
        ({"text": "one two", "predictions": [{"text": "one"}]}, True, ["one"]),
    ],
)
def test_plain_text_of_every_kind_of_answer(
    answer: dict[str, Any], show_all: bool, expected: list[str]
) -> None:
    assert list(plain_lines(answer, show_all=show_all)) == expected


def test_one_input_keeps_its_form(run: Run, where: list[str], photos: Path) -> None:
    """The answer is not a list, has no heading, and an error ends the command."""
    (photos / "inner" / "7.png").write_bytes((SAMPLES / "7.png").read_bytes())
    for word in (
        photos / "7.png",
        photos / "inner",
        f"{photos}/7*",
    ):
        assert (
            json.loads(run("digits", word, "--json", *where)[1])["predictions"][0][
                "label"
            ]
            == "7"
        )
        assert run("digits", word, *where)[1].startswith("LABEL")
    code, out, err = run("digits", photos / "notes.txt", "--json", *where)
    assert (code, out) == (1, "")
    assert err.startswith(
        f"pocketserve: {photos / 'notes.txt'}: this is not a picture that the server can read (JPEG, "
    )


def test_an_error_of_all_inputs_is_printed_once(
    run: Run, where: list[str], photos: Path
) -> None:
    for words in (["nothing", photos], ["digits", photos, "--top-k", 0]):
        code, out, err = run(*words, *where)
        assert code == 1
        assert out == ""
        assert len(err.splitlines()) == 1


def test_save_pictures_of_the_answers(
    run: Run, where: list[str], photos: Path, tmp_path: Path
) -> None:
    """They go into a folder under new names, so that no existing picture is
    overwritten.
    """
    shutil.copy(SAMPLES / "3.png", photos / "inner" / "7.png")
    before = (photos / "7.png").read_bytes()
    code, out, _ = run(
        "digits", photos / "7.png", photos / "inner", "--save", photos, *where
    )
    assert code == 0
    assert (photos / "7.png").read_bytes() == before
    saved = [photos / "7.answer.png", photos / "7.answer1.png"]
    assert all(
        path.read_bytes().startswith(b"\x89PNG") and str(path) in out for path in saved
    )
    run(
        "digits",
        photos / "3.png",
        photos / "7.png",
        "--save",
        tmp_path / "new" / "folder",
        *where,
    )
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "3.answer.png",
        "7.answer.png",
    ]
    code, _, err = run(
        "digits",
        photos / "3.png",
        photos / "7.png",
        "--save",
        tmp_path / "two.png",
        *where,
    )
    assert code == 1
    assert not (tmp_path / "two.png").exists()
    assert (
        "two.png' is the name of one picture, and there are several; name a folder for them"
        in err
    )
    (photos / "notes").touch()
    code, _, err = run(
        "digits", photos / "3.png", photos / "7.png", "--save", photos / "notes", *where
    )
    assert code == 1
    assert "cannot be a folder for pictures" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{tmp}/photos/7.png", "5.1"], "'5.1' is not a file, folder or address"),
        (["{tmp}/empty"], "empty' has no files"),
        (["{tmp}/nowhere"], "nowhere' is not a regular file"),
        (["{tmp}/none.*"], "no file matches '"),
        ([""], "the input is empty"),
    ],
)
def test_invalid_inputs_are_rejected(
    photos: Path, tmp_path: Path, words: list[str], reason: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(CommandError, match=reason):
        read_inputs([word.format(tmp=tmp_path) for word in words])


def test_predict_file_patterns(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quoted patterns are expanded here.

    Questions and JSON are not patterns.
    """
    monkeypatch.chdir(photos)
    assert [source.name for source in read_inputs(["*.png"])] == [
        "3.png",
        "7.png",
        "9.png",
    ]
    assert [source.name for source in read_inputs(["?.png", "**/*.txt"])] == [
        "3.png",
        "7.png",
        "9.png",
        "notes.txt",
    ]
    assert [source.read() for source in read_inputs(["where is it?"])] == [
        b"where is it?"
    ]
    assert [source.read() for source in read_inputs(["[7, 3]*"])] == [b"[7, 3]*"]
    assert [source.read() for source in read_inputs(["1", "2"])] == [b"[1, 2]"]
    assert [source.read() for source in read_inputs(['"good"'])] == [b'"good"']


def test_inputs_form_a_sequence() -> None:
    """The first successful step opens the sequence.

    The last closes it.
    """
    steps = Steps(3)
    first = steps.next()
    again = steps.next()
    assert first == again == {"sequence_id": steps.id, "sequence_start": "true"}
    steps.is_open = True
    assert steps.next() == {"sequence_id": steps.id, "sequence_end": "true"}


def test_predict_a_pair(run: Run) -> None:
    """Two texts form one input and allow no other."""
    folder = str(Path(__file__).parents[1] / "models" / "answers")
    # This model rejects texts; its error shows the input that was sent.
    code, _, error = run(folder, "--pair", "who?", "anna", "--local")
    assert code == 1
    assert "unknown key 'text'" in error
    for words in (["a"], ["a", "b", "c"]):
        code, _, error = run(folder, *words, "--pair", "--local")
        assert code == 1
        assert f"--pair takes two texts in quotes, not {len(words)}" in error


@pytest.mark.onnx
def test_state_continues_between_steps(run: Run, tmp_path: Path) -> None:
    """State continues from input to input, unless they are not steps."""
    pytest.importorskip("onnx", reason="makes the model")
    from sequence_models import FEEDBACK, running_sum

    folder = tmp_path / "sum"
    folder.mkdir()
    running_sum(folder / "sum.onnx", 2)
    (folder / "model.toml").write_text(FEEDBACK)
    for name in "abc":
        (tmp_path / name).write_text("[1, 0]")
    inputs = [tmp_path / name for name in "abc"]
    for options, sums in (([], [1, 1, 1]), (["--sequence"], [1, 2, 3])):
        code, out, _ = run(folder, *inputs, "--local", "--jsonl", *options)
        assert code == 0
        assert [
            json.loads(line)["predictions"][0]["data"][0] for line in out.splitlines()
        ] == sums


class Pages(BaseHTTPRequestHandler):
    """A web server with a picture, redirects, errors and an oversized file.

    It records request headers.
    """

    seen: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        route = self.path.strip("/")
        if route in ("loop", "away", "file"):
            target = {
                "loop": "/loop",
                "away": "/7.png",
                "file": "file:///etc/hostname",
            }[route]
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = (
            (SAMPLES / "7.png").read_bytes()
            if route == "7.png"
            else b"x" * 5000
            if route == "large"
            else b""
        )
        self.send_response(200 if content else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *words: Any) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(120)
    server.server_close()


def test_predict_addresses_of_pictures(
    run: Run, where: list[str], pages: str, photos: Path
) -> None:
    """They are downloaded here with redirects, and the server's token is never sent."""
    Pages.seen.clear()
    words = [
        f"{pages}/7.png",
        f"{pages}/away",
        f"{pages}/none",
        photos / "3.png",
    ]
    code, out, err = run("digits", *words, "--jsonl", *where)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert f"{pages}/none cannot be fetched: the server answers 404" in err
    assert [
        line["predictions"][0]["label"] if "error" not in line else "" for line in lines
    ] == ["7", "7", "", "3"]
    assert Pages.seen
    assert not any(
        "authorization" in headers or "cookie" in headers for headers in Pages.seen
    )


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("large", "has more than 4,096 bytes"),
        ("loop", "it redirects more than 5 times"),
        ("file", "cannot be fetched: No connection adapters were found"),
        ("none", "the server answers 404"),
    ],
)
def test_downloads_are_bounded(pages: str, path: str, reason: str) -> None:
    with pytest.raises(ServerUnreachableError, match=reason):
        fetch(f"{pages}/{path}", 20.0, 4096)


def test_an_address_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        ServerUnreachableError, match="cannot be fetched: Connection refused"
    ):
        fetch(f"http://127.0.0.1:{port}/x.png", 20.0, 4096)
