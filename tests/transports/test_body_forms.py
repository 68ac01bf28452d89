"""Accept bodies of Node, .NET, OkHttp, Dart, Unity, Python and curl over both
transports.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import shutil
import struct
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS, ROOT, Server, start_server

onnx = pytest.importorskip("onnx", reason="makes a model with two inputs")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

TIMEOUT_S = 300.0
SEVEN = (MODELS / "digits" / "samples" / "7.png").read_bytes()
THREE = (MODELS / "digits" / "samples" / "3.png").read_bytes()
SEVEN_64 = base64.b64encode(SEVEN)
SEVEN_SAFE = base64.urlsafe_b64encode(SEVEN).rstrip(b"=")
SEVEN_LINES = base64.encodebytes(SEVEN).replace(b"\n", b"\\r\\n")
SEVEN_URL = b"data:image/png;base64," + SEVEN_64
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
TEXT = "text/plain;charset=UTF-8"  # fetch's type for a string
LAMP = "switch the lamp on"
QUESTION = {
    "question": "where does anna live?",
    "context": "ben likes tea. anna lives in oslo.",
}


def tone() -> bytes:
    """Return a second of 440 Hz as a WAV file."""
    samples = []
    for index in range(16000):
        samples.append(round(20000 * math.sin(2 * math.pi * 440 * index / 16000)))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        writer.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return file.getvalue()


TONE = tone()
TONE_64 = base64.b64encode(TONE)


def npy(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(values, np.float32))
    return file.getvalue()


def multipart(boundary: str, *parts: tuple[str, bytes]) -> bytes:
    """Return a form of parts with these headers."""
    pieces = []
    for head, content in parts:
        pieces.append(f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n")
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


UNDICI = "----formdata-undici-042186310974"
CURL = "------------------------d74496d66958873e"
DOTNET = "5a4f2c61-3c2e-4b7d-9d15-bb2f8b6ad5ff"
OKHTTP = "3f1c9d6e-9f0a-4a55-8a7e-1b1f4e0c2d3a"
DART = "dart-http-boundary-aB+c.d_e'f(g)"
UNITY = "mXlP0dZq8sJw7vKq"


def field(name: str) -> str:
    return f'Content-Disposition: form-data; name="{name}"'


def file(name: str, filename: str = "7.png", kind: str = "image/png") -> str:
    return f'Content-Disposition: form-data; name="{name}"; filename="{filename}"\r\nContent-Type: {kind}'


def form_of(boundary: str) -> str:
    return f"multipart/form-data; boundary={boundary}"


@dataclass(frozen=True)
class Case:
    """A request and its expected result: a reference's predictions, or an error.

    Attributes:
        same_as: a key of REFERENCES.
        error: a part of the sentence of a 400.
    """

    sender: str
    path: str
    content_type: str
    body: bytes
    same_as: str = ""
    error: str = ""

    def __str__(self) -> str:
        return self.sender.replace(" ", "-")


REFERENCES = {
    "seven": ("/predictions/digits?top_k=1", "image/png", SEVEN),
    "seven and three": (
        "/predictions/digits?top_k=1",
        JSON,
        json.dumps(
            [{"b64": SEVEN_64.decode()}, {"b64": base64.b64encode(THREE).decode()}]
        ).encode(),
    ),
    "tone": ("/predictions/tones?top_k=1", "audio/wav", TONE),
    "text": ("/predictions/phrases", JSON, json.dumps({"text": LAMP}).encode()),
    "texts": (
        "/predictions/phrases",
        JSON,
        json.dumps({"texts": [LAMP, "play a song"]}).encode(),
    ),
    "query": (
        "/predictions/phrases",
        JSON,
        json.dumps({"query": LAMP, "texts": [LAMP, "play a song"]}).encode(),
    ),
    "question": ("/predictions/answers?top_k=1", JSON, json.dumps(QUESTION).encode()),
    "row": ("/predictions/petals", JSON, b"[5.1, 3.5, 1.4]"),
    "rows": ("/predictions/petals", JSON, b"[[5.1, 3.5, 1.4], [6.0, 2.9, 4.5]]"),
    "gap": (
        "/predictions/petals",
        JSON,
        b'{"sepal_length": 5.1, "sepal_width": null, "petal_length": 1.4}',
    ),
    "items": ("/predictions/shelf?top_k=2", JSON, b'[3, "Wild Herbs"]'),
    "sum": ("/predictions/sum", JSON, b'{"a": [[1, 2]], "b": [[10, 20]]}'),
}

DIGITS = "/predictions/digits"
ONE = "/predictions/digits?top_k=1"
PHRASES = "/predictions/phrases"
PETALS = "/predictions/petals"

CASES = [
    # Pictures and sounds in JSON
    Case("Node fetch {b64}", ONE, JSON, b'{"b64":"%b"}' % SEVEN_64, "seven"),
    Case(
        "Node fetch {data: data URL}", ONE, JSON, b'{"data":"%b"}' % SEVEN_URL, "seven"
    ),
    Case(
        "Node fetch {image: data URL}",
        ONE,
        JSON,
        b'{"image":"%b"}' % SEVEN_URL,
        "seven",
    ),
    Case(
        "Node fetch {image: base64}", ONE, JSON, b'{"image":"%b"}' % SEVEN_64, "seven"
    ),
    Case("Node fetch JSON as text", ONE, TEXT, b'{"image":"%b"}' % SEVEN_64, "seven"),
    Case("Node fetch data URL as text", ONE, TEXT, SEVEN_URL, "seven"),
    Case("Node fetch base64 as text", ONE, TEXT, SEVEN_64, "seven"),
    Case(
        "Tasker base64 with line breaks as text",
        "/predictions/tones?top_k=1",
        "text/plain",
        base64.encodebytes(TONE),
        "tone",
    ),
    Case("curl file as text", ONE, "text/plain", SEVEN, "seven"),
    Case(
        "Node words as text",
        DIGITS,
        TEXT,
        b"what is on this picture",
        error="not a picture that the server can read",
    ),
    Case(
        "Shortcuts base64 as a file",
        DIGITS,
        "application/octet-stream",
        SEVEN_64,
        error='it looks like base64; send JSON, {"b64": "..."}',
    ),
    Case(
        "Google upload client multipart/related",
        DIGITS,
        f"multipart/related; boundary={CURL}",
        multipart(CURL, ("Content-Type: image/png", SEVEN)),
        error="only multipart/form-data is read of multipart bodies",
    ),
    Case("Node fetch base64 as a JSON text", ONE, JSON, b'"%b"' % SEVEN_64, "seven"),
    Case(
        "Dart base64Url without padding",
        ONE,
        "application/json; charset=utf-8",
        b'{"image":"%b"}' % SEVEN_SAFE,
        "seven",
    ),
    Case(
        ".NET base64 with line breaks",
        ONE,
        "application/json; charset=utf-8",
        b'{"b64":"%b"}' % SEVEN_LINES,
        "seven",
    ),
    Case(
        ".NET JSON with a byte order mark",
        ONE,
        JSON,
        b'\xef\xbb\xbf{"b64":"%b"}' % SEVEN_64,
        "seven",
    ),
    Case(
        "TorchServe client {instances: [{data}, {data}]}",
        ONE,
        JSON,
        b'{"instances":[{"data":"%b"},{"data":"%b"}]}'
        % (SEVEN_64, base64.b64encode(THREE)),
        "seven and three",
    ),
    Case(
        "TF Serving client {inputs: {image: {b64}}}",
        ONE,
        JSON,
        b'{"inputs":{"image":{"b64":"%b"}}}' % SEVEN_64,
        "seven",
    ),
    Case(
        "curl list of data URLs",
        ONE,
        JSON,
        b'["%b","data:image/png;base64,%b"]' % (SEVEN_URL, base64.b64encode(THREE)),
        "seven and three",
    ),
    Case(
        "OkHttp {audio: base64}",
        "/predictions/tones?top_k=1",
        "application/json; charset=utf-8",
        b'{"audio":"%b"}' % TONE_64,
        "tone",
    ),
    Case(
        "Unity {audio: data URL}",
        "/predictions/tones?top_k=1",
        JSON,
        b'{"audio":"data:audio/wav;base64,%b"}' % TONE_64,
        "tone",
    ),
    Case(
        "Node fetch raw samples {b64}",
        "/predictions/tones?top_k=1&format=pcm16",
        JSON,
        b'{"b64":"%b"}' % base64.b64encode(TONE[44:]),
        "tone",
    ),
    Case(
        "Node wrong base64",
        DIGITS,
        JSON,
        b'{"b64":"%b*"}' % SEVEN_64,
        error="the picture is not base64",
    ),
    Case(
        "Node base64 cut off",
        DIGITS,
        JSON,
        b'{"b64":"aGVsb"}',
        error="the picture is not base64",
    ),
    Case(
        "Node data URL without base64",
        DIGITS,
        JSON,
        b'{"image":"data:image/svg+xml,%3Csvg/%3E"}',
        error="a data URL without base64",
    ),
    Case(
        "Node parameter in the JSON",
        DIGITS,
        JSON,
        b'{"b64":"aGVsbG8=","top_k":1}',
        error="'top_k', parameters belong in the query",
    ),
    Case(
        "Node address instead of a file",
        DIGITS,
        JSON,
        b'{"url":"https://example.com/a.png"}',
        error='{"b64": "..."}',
    ),
    Case(
        "Node number instead of a file",
        DIGITS,
        JSON,
        b'{"image":7}',
        error='{"b64": "..."}: got a number',
    ),
    Case(
        "Node no picture in the base64",
        DIGITS,
        JSON,
        b'{"b64":"aGVsbG8="}',
        error="not a picture that the server can read",
    ),
    Case("Node empty list", DIGITS, JSON, b'{"instances":[]}', error="1 to 64 files"),
    # Files and fields in forms
    Case(
        "undici FormData file",
        ONE,
        form_of(UNDICI),
        multipart(UNDICI, (file("file"), SEVEN)),
        "seven",
    ),
    Case(
        "undici FormData file and field",
        DIGITS,
        form_of(UNDICI),
        multipart(UNDICI, (file("file"), SEVEN), (field("top_k"), b"1")),
        "seven",
    ),
    Case(
        "undici FormData field and file",
        DIGITS,
        form_of(UNDICI),
        multipart(UNDICI, (field("top_k"), b"1"), (file("file"), SEVEN)),
        "seven",
    ),
    Case(
        "browser with an unfilled file field",
        ONE,
        form_of(CURL),
        multipart(
            CURL, (file("a"), SEVEN), (file("b", "", "application/octet-stream"), b"")
        ),
        "seven",
    ),
    Case(
        "undici FormData two files",
        ONE,
        form_of(UNDICI),
        multipart(UNDICI, (file("files"), SEVEN), (file("files", "3.png"), THREE)),
        "seven and three",
    ),
    Case(
        ".NET MultipartFormDataContent",
        DIGITS,
        f'multipart/form-data; boundary="{DOTNET}"',
        multipart(
            DOTNET,
            (
                "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=top_k",
                b"1",
            ),
            (
                "Content-Disposition: form-data; name=file; filename=7.png; filename*=utf-8''7.png",
                SEVEN,
            ),
        ),
        "seven",
    ),
    Case(
        "OkHttp MultipartBody",
        DIGITS,
        form_of(OKHTTP),
        multipart(
            OKHTTP,
            (f"{field('top_k')}\r\nContent-Length: 1", b"1"),
            (f"{file('image')}\r\nContent-Length: {len(SEVEN)}", SEVEN),
        ),
        "seven",
    ),
    Case(
        "Retrofit RequestBody",
        DIGITS,
        form_of(OKHTTP),
        multipart(
            OKHTTP,
            (
                f"{field('top_k')}\r\nContent-Transfer-Encoding: binary\r\nContent-Type: text/plain; charset=utf-8",
                b"1",
            ),
            (file("image"), SEVEN),
        ),
        "seven",
    ),
    Case(
        "Dart MultipartRequest",
        DIGITS,
        form_of(DART),
        multipart(
            DART,
            ('content-disposition: form-data; name="top_k"', b"1"),
            (
                'content-type: image/png\r\ncontent-disposition: form-data; name="file"; filename="7.png"',
                SEVEN,
            ),
        ),
        "seven",
    ),
    Case(
        "Unity WWWForm",
        DIGITS,
        f'multipart/form-data; boundary="{UNITY}"',
        multipart(
            UNITY,
            (
                'Content-Type: text/plain; charset="utf-8"\r\nContent-disposition: form-data; name="top_k"',
                b"1",
            ),
            (
                "Content-Type: application/octet-stream\r\n"
                'Content-disposition: form-data; name="file"; filename="7.png"',
                SEVEN,
            ),
        ),
        "seven",
    ),
    Case(
        "a file without a name but with its type",
        ONE,
        form_of(CURL),
        multipart(CURL, (f"{field('x')}\r\nContent-Type: image/png", SEVEN)),
        "seven",
    ),
    Case(
        "curl -F data=<photo",
        ONE,
        form_of(CURL),
        multipart(CURL, (field("data"), SEVEN)),
        "seven",
    ),
    Case(
        "FormData with a data URL",
        DIGITS,
        form_of(UNDICI),
        multipart(UNDICI, (field("image"), SEVEN_URL), (field("top_k"), b"1")),
        "seven",
    ),
    Case(
        "DeepStack client file and min_confidence",
        DIGITS,
        form_of(CURL),
        multipart(CURL, (file("image"), SEVEN), (field("min_confidence"), b"0.4")),
        error="unknown form field 'min_confidence'; this model takes",
    ),
    Case(
        "form with a wrong parameter",
        DIGITS,
        form_of(CURL),
        multipart(CURL, (file("image"), SEVEN), (field("top_k"), b"many")),
        error="parameter top_k must be a whole number",
    ),
    Case(
        "form with fields only",
        DIGITS,
        form_of(CURL),
        multipart(CURL, (field("top_k"), b"1")),
        error="no file",
    ),
    Case(
        "form and query with one parameter",
        ONE,
        form_of(CURL),
        multipart(CURL, (file("image"), SEVEN), (field("top_k"), b"1")),
        error="top_k is given twice",
    ),
    Case(
        "form with priority",
        DIGITS,
        form_of(CURL),
        multipart(
            CURL,
            (file("image"), SEVEN),
            (field("priority"), b"5"),
            (field("top_k"), b"1"),
        ),
        "seven",
    ),
    Case(
        "requests image=base64",
        DIGITS,
        FORM,
        b"image="
        + SEVEN_64.replace(b"+", b"%2B").replace(b"/", b"%2F").replace(b"=", b"%3D")
        + b"&top_k=1",
        "seven",
    ),
    Case(
        "curl -d image=base64 without encoding",
        ONE,
        FORM,
        b"image=" + SEVEN_64,
        "seven",
    ),
    Case("curl --data-binary @photo", ONE, FORM, SEVEN, "seven"),
    # Text
    Case(
        "URLSearchParams text",
        PHRASES,
        "application/x-www-form-urlencoded;charset=UTF-8",
        b"text=switch+the+lamp+on",
        "text",
    ),
    Case(
        "requests data={'text': ...}",
        PHRASES,
        FORM,
        b"text=switch%20the%20lamp%20on",
        "text",
    ),
    Case(
        "axios texts[]",
        PHRASES,
        FORM,
        b"texts%5B%5D=switch+the+lamp+on&texts%5B%5D=play+a+song",
        "texts",
    ),
    Case(
        "URLSearchParams query and texts",
        PHRASES,
        FORM,
        b"query=switch+the+lamp+on&texts=switch+the+lamp+on&texts=play+a+song",
        "query",
    ),
    Case(
        "FormData query and texts",
        PHRASES,
        form_of(UNDICI),
        multipart(
            UNDICI,
            (field("query"), LAMP.encode()),
            (field("texts"), LAMP.encode()),
            (field("texts"), b"play a song"),
        ),
        "query",
    ),
    Case(
        "OkHttp FormBody question and context",
        "/predictions/answers",
        FORM,
        b"question=where%20does%20anna%20live%3F&context=ben%20likes%20tea.%20anna%20lives%20in%20oslo.&top_k=1",
        "question",
    ),
    Case(
        "fetch JSON.stringify({text})",
        PHRASES,
        TEXT,
        json.dumps({"text": LAMP}).encode(),
        "text",
    ),
    Case(
        "fetch JSON.stringify({query, texts})",
        PHRASES,
        TEXT,
        json.dumps({"query": LAMP, "texts": [LAMP, "play a song"]}).encode(),
        "query",
    ),
    Case(
        "PowerShell JSON with a byte order mark",
        PHRASES,
        JSON,
        b"\xef\xbb\xbf" + json.dumps({"text": LAMP}).encode(),
        "text",
    ),
    Case("curl -d plain text", PHRASES, FORM, LAMP.encode(), "text"),
    Case(
        "FormData one text",
        PHRASES,
        form_of(UNDICI),
        multipart(UNDICI, (field("text"), LAMP.encode())),
        "text",
    ),
    Case(
        "FormData two text files",
        PHRASES,
        form_of(UNDICI),
        multipart(
            UNDICI,
            (file("a", "a.txt", "text/plain"), LAMP.encode()),
            (file("b", "b.txt", "text/plain"), b"play a song"),
        ),
        "texts",
    ),
    Case(
        "text with an unencoded &",
        PHRASES,
        FORM,
        b"text=salt & pepper",
        error="unknown form field ' pepper'",
    ),
    Case(
        "question without context",
        "/predictions/answers",
        FORM,
        b"question=where",
        error="'context' is missing",
    ),
    # Tables and items
    Case(
        "URLSearchParams features",
        PETALS,
        FORM,
        b"petal_length=1.4&sepal_length=5.1&sepal_width=3.5",
        "row",
    ),
    Case(
        "Unity WWWForm features",
        PETALS,
        f'multipart/form-data; boundary="{UNITY}"',
        multipart(
            UNITY,
            (field("sepal_length"), b"5.1"),
            (field("sepal_width"), b"3.5"),
            (field("petal_length"), b"1.4"),
        ),
        "row",
    ),
    Case(
        "features of two rows",
        PETALS,
        FORM,
        b"sepal_length=5.1&sepal_width=3.5&petal_length=1.4&sepal_length=6.0&sepal_width=2.9&petal_length=4.5",
        "rows",
    ),
    Case(
        "an empty field is a gap",
        PETALS,
        FORM,
        b"sepal_length=5.1&sepal_width=&petal_length=1.4",
        "gap",
    ),
    Case(
        "JSON row with a byte order mark",
        PETALS,
        JSON,
        b"\xef\xbb\xbf[5.1, 3.5, 1.4]",
        "row",
    ),
    Case(
        "CSV file in a form",
        PETALS,
        form_of(CURL),
        multipart(
            CURL, (file("table", "rows.csv", "text/csv"), b"5.1,3.5,1.4\n6.0,2.9,4.5\n")
        ),
        "rows",
    ),
    Case("curl -d numbers", PETALS, FORM, b"5.1,3.5,1.4", "row"),
    Case(
        "feature is missing",
        PETALS,
        FORM,
        b"sepal_length=5.1&sepal_width=3.5",
        error="petal_length",
    ),
    Case(
        "unknown feature",
        PETALS,
        FORM,
        b"sepal_length=5.1&sepal_width=3.5&petal_length=1&colour=2",
        error="unknown form field 'colour'",
    ),
    Case(
        "German decimal comma",
        PETALS,
        FORM,
        b"sepal_length=5,1&sepal_width=3.5&petal_length=1.4",
        error="decimal point",
    ),
    Case(
        "items",
        "/predictions/shelf",
        FORM,
        b"items=3&items=Wild+Herbs&top_k=2",
        "items",
    ),
    Case(
        "items as JSON",
        "/predictions/shelf",
        form_of(CURL),
        multipart(CURL, (field("items"), b'[3, "Wild Herbs"]'), (field("top_k"), b"2")),
        "items",
    ),
    # Tensors by input
    Case(
        "FormData .npy by input name",
        "/predictions/sum",
        form_of(UNDICI),
        multipart(
            UNDICI,
            (file("a", "a.npy", "application/octet-stream"), npy([[1, 2]])),
            (file("b", "b.npy", "application/octet-stream"), npy([[10, 20]])),
        ),
        "sum",
    ),
    Case(
        "FormData JSON by input name",
        "/predictions/sum",
        form_of(UNDICI),
        multipart(UNDICI, (field("a"), b"[[1, 2]]"), (field("b"), b"[[10, 20]]")),
        "sum",
    ),
    Case(
        "unknown input in a form",
        "/predictions/sum",
        form_of(UNDICI),
        multipart(
            UNDICI,
            (file("a", "a.npy", "application/octet-stream"), npy([[1, 2]])),
            (file("c", "c.npy", "application/octet-stream"), npy([[1, 2]])),
        ),
        error="unknown input 'c' in the form; the model takes 'a', 'b'",
    ),
]


def add_model(path: Path) -> None:
    """Write an ONNX model with two inputs: y = a + b."""
    helper = onnx.helper
    kind = onnx.TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info(name, kind, ["n", 2]) for name in ("a", "b")
    ]
    output = helper.make_tensor_value_info("y", kind, ["n", 2])
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])], "sum", inputs, [output]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on a model of each kind of input."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("digits", "petals"):
        (folder / name).mkdir()
        for file_name in (f"{name}.tflite", "model.toml", "labels.txt"):
            if (MODELS / name / file_name).exists():
                shutil.copy(MODELS / name / file_name, folder / name)
    for name in ("phrases", "answers", "shelf", "tones"):
        shutil.copytree(ROOT / "tests" / "models" / name, folder / name)
    add_model(folder / "sum" / "1" / "model.onnx")
    server = start_server(tmp_path_factory.mktemp("server"), folder)
    yield server
    assert server.stop() == 0


Ask = Callable[[str, str, bytes], tuple[int, Any]]


@pytest.fixture(params=["http", "socket"])
def ask(request: pytest.FixtureRequest, served: Server) -> Iterator[Ask]:
    """Send a body; return the status and the document, which must be JSON without NaN."""

    def over_http(path: str, content_type: str, body: bytes) -> tuple[int, Any]:
        headers = {
            "Authorization": f"Bearer {served.token}",
            "Content-Type": content_type,
        }
        plain.request("POST", path, body, headers)
        answer = plain.getresponse()
        return answer.status, strict(answer.read())

    def over_socket(path: str, content_type: str, body: bytes) -> tuple[int, Any]:
        ext = {2: content_type.encode()}
        answer = framed.call(f"POST {path}", body, json_length=len(body), ext=ext)
        return answer.status, strict(answer.body)

    plain = http.client.HTTPConnection("127.0.0.1", served.port, timeout=TIMEOUT_S)
    with served.connect() as framed:
        yield over_http if request.param == "http" else over_socket
    plain.close()


def strict(document: bytes) -> Any:
    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(document, parse_constant=refuse)


def test_names_are_unique() -> None:
    assert len({case.sender for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_body_gets_the_expected_result(ask: Ask, case: Case) -> None:
    status, document = ask(case.path, case.content_type, case.body)
    if case.error:
        assert status == 400 and case.error in document["error"], document
        return
    assert status == 200, document
    expected_status, expected = ask(*REFERENCES[case.same_as])
    assert expected_status == 200, expected
    assert document["predictions"] == expected["predictions"]


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.content_type.startswith(("multipart", FORM))],
    ids=str,
)
def test_a_chunked_form_is_read(served: Server, case: Case) -> None:
    """HTTP clients that don't know the length send chunks."""
    plain = http.client.HTTPConnection("127.0.0.1", served.port, timeout=TIMEOUT_S)
    headers = {
        "Authorization": f"Bearer {served.token}",
        "Content-Type": case.content_type,
    }
    plain.request("POST", case.path, iter([case.body[:50], case.body[50:]]), headers)
    answer = plain.getresponse()
    document = json.loads(answer.read())
    plain.close()
    assert answer.status == (400 if case.error else 200), document


def test_several_pictures_are_numbered(ask: Ask) -> None:
    _, document = ask(*REFERENCES["seven and three"])
    entries = [(entry["label"], entry["input"]) for entry in document["predictions"]]
    assert entries == [("7", 0), ("3", 1)]


def test_annotate_takes_one_picture(ask: Ask) -> None:
    path, content_type, body = REFERENCES["seven and three"]
    status, document = ask(f"{path}&annotate=png", content_type, body)
    assert status == 400
    assert document["code"] == "INVALID_PARAMETER"


def test_a_parameter_of_a_form_is_checked_against_the_task(ask: Ask) -> None:
    body = multipart(CURL, (field("text"), LAMP.encode()), (field("annotate"), b"png"))
    status, document = ask(PHRASES, form_of(CURL), body)
    assert (status, document["code"]) == (400, "INVALID_PARAMETER"), document


def test_too_many_files_are_refused(ask: Ask) -> None:
    parts = [(file("files"), SEVEN)] * 65
    status, document = ask(DIGITS, form_of(CURL), multipart(CURL, *parts))
    assert status == 400
    assert "the limit is 64" in document["error"]


# TensorFlow Serving and the Open Inference Protocol


@pytest.mark.parametrize(
    ("values", "predictions"),
    [
        ({"instances": [{"b64": SEVEN_64.decode()}]}, 1),
        (
            {
                "instances": [
                    {"image": {"b64": SEVEN_64.decode()}},
                    {"image": {"b64": SEVEN_64.decode()}},
                ]
            },
            2,
        ),
        ({"instances": [SEVEN_URL.decode()]}, 1),
        ({"inputs": {"image": {"b64": SEVEN_64.decode()}}}, 0),
    ],
)
def test_pictures_over_v1(ask: Ask, values: Any, predictions: int) -> None:
    """The answer has one list of entries for each instance."""
    status, document = ask(
        "/v1/models/digits:predict?top_k=1", JSON, json.dumps(values).encode()
    )
    assert status == 200, document
    answers = document["predictions"] if predictions else [document["outputs"]]
    assert [[entry["label"] for entry in answer] for answer in answers] == [["7"]] * (
        predictions or 1
    )


def test_tensors_of_a_picture_model_over_v1(ask: Ask) -> None:
    """Numbers are tensors."""
    body = json.dumps({"instances": np.zeros((1, 8, 8, 1)).tolist()}).encode()
    status, document = ask("/v1/models/digits:predict", JSON, body)
    assert status == 200
    assert len(document["predictions"][0]) == 10


@pytest.mark.parametrize(
    "values",
    [
        {"instances": [{"b64": "*"}]},
        {"instances": [{"image": {"b64": "*"}}]},
    ],
)
def test_wrong_base64_over_v1(ask: Ask, values: Any) -> None:
    status, document = ask(
        "/v1/models/digits:predict", JSON, json.dumps(values).encode()
    )
    assert status == 400
    assert document["error"] == "the picture is not base64"


ROW = {
    "sepal_length": 5.1,
    "sepal_width": 3.5,
    "petal_length": 1.4,
}


def test_rows_by_feature_over_v1(ask: Ask) -> None:
    _, plain = ask(
        "/v1/models/petals:predict",
        JSON,
        b'{"instances": [[5.1, 3.5, 1.4], [5.1, 3.5, 1.4]]}',
    )
    status, rows = ask(
        "/v1/models/petals:predict",
        JSON,
        json.dumps({"instances": [ROW, ROW]}).encode(),
    )
    assert status == 200
    assert rows == plain
    columns = {name: [value, value] for name, value in ROW.items()}
    status, by_column = ask(
        "/v1/models/petals:predict", JSON, json.dumps({"inputs": columns}).encode()
    )
    assert status == 200
    assert by_column["outputs"] == plain["predictions"]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (
            {"sepal_length": 5.1, "sepal_width": 3.5},
            "feature 'petal_length' is missing",
        ),
        ({**ROW, "colour": 1}, "unknown feature 'colour'"),
    ],
)
def test_wrong_features_over_v1(ask: Ask, row: Any, fault: str) -> None:
    status, document = ask(
        "/v1/models/petals:predict", JSON, json.dumps({"instances": [row]}).encode()
    )
    assert status == 400
    assert fault in document["error"]


def columns_of(rows: int, datatype: str = "FP64", **more: Any) -> bytes:
    """Return a tensor per feature, as MLServer's pandas codec writes data frames."""
    values = {**ROW, **more}
    if datatype == "INT64":
        values = {name: round(value) for name, value in values.items()}
    inputs = []
    for name, value in values.items():
        inputs.append(
            {
                "name": name,
                "shape": [rows, 1],
                "datatype": datatype,
                "data": [value] * rows,
            }
        )
    return json.dumps({"parameters": {"content_type": "pd"}, "inputs": inputs}).encode()


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT64"])
def test_a_tensor_for_each_feature(ask: Ask, datatype: str) -> None:
    row = [5, 4, 1] if datatype == "INT64" else list(ROW.values())
    matrix = {
        "name": "features",
        "shape": [2, 3],
        "datatype": "FP32",
        "data": [row, row],
    }
    _, plain = ask(
        "/v2/models/petals/infer", JSON, json.dumps({"inputs": [matrix]}).encode()
    )
    # the second request must not match a cached one with other tensors
    for _ in range(2):
        status, document = ask("/v2/models/petals/infer", JSON, columns_of(2, datatype))
        assert status == 200 and document["outputs"] == plain["outputs"], document


def test_wrong_tensors_for_features_are_refused(ask: Ask) -> None:
    status, document = ask("/v2/models/petals/infer", JSON, columns_of(1, colour=1.0))
    assert status == 400
    assert "unknown feature 'colour'" in document["error"]
    text = {
        "name": "sepal_length",
        "shape": [1],
        "datatype": "BYTES",
        "data": ["5"],
    }
    inputs = [
        {
            "name": n,
            "shape": [1],
            "datatype": "FP32",
            "data": [1],
        }
        for n in ("sepal_width", "petal_length")
    ]
    status, document = ask(
        "/v2/models/petals/infer",
        JSON,
        json.dumps({"inputs": [text, *inputs]}).encode(),
    )
    assert status == 400
    assert "BYTES does not fit the model's FP32" in document["error"]


def oip_task(
    data: list[str], model: str = "digits", request: Any = None, **tensor: Any
) -> tuple[str, str, bytes]:
    """Send raw input over the Open Inference Protocol."""
    item = {
        "name": "image",
        "shape": [len(data)],
        "datatype": "BYTES",
        "data": data,
        **tensor,
    }
    parameters = {
        "task": True,
        "top_k": 1,
        **(request or {}),
    }
    return (
        f"/v2/models/{model}/infer",
        JSON,
        json.dumps({"parameters": parameters, "inputs": [item]}).encode(),
    )


BASE64_FORMS = [
    oip_task([SEVEN_64.decode()], parameters={"content_type": "base64"}),
    oip_task([SEVEN_64.decode()], request={"content_type": "base64"}),
    oip_task([SEVEN_URL.decode()]),
    oip_task([json.dumps({"b64": SEVEN_64.decode()})]),
    oip_task(
        [SEVEN_64.decode(), base64.b64encode(THREE).decode()],
        parameters={"content_type": "base64"},
    ),
]


@pytest.mark.parametrize(
    "sent",
    BASE64_FORMS,
)
def test_base64_of_mlserver(ask: Ask, sent: tuple[str, str, bytes]) -> None:
    status, document = ask(*sent)
    assert status == 200, document
    answer = strict(document["outputs"][0]["data"][0].encode())
    assert [entry["label"] for entry in answer["predictions"]] in (["7"], ["7", "3"])


def test_wrong_base64_of_mlserver(ask: Ask) -> None:
    status, document = ask(*oip_task(["*"], parameters={"content_type": "base64"}))
    assert status == 400
    assert document["error"] == "input 'image' is not base64"


def test_several_texts_over_oip(ask: Ask) -> None:
    status, document = ask(*oip_task([LAMP, "play a song"], model="phrases"))
    assert status == 200, document
    _, expected = ask(*REFERENCES["texts"])
    assert (
        strict(document["outputs"][0]["data"][0].encode())["predictions"]
        == expected["predictions"]
    )
