"""``/predictions/NAME``: raw input, labelled answer."""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from conftest import MODELS

SAMPLES = MODELS / "digits" / "samples"
ZEROS = json.dumps([0.0] * 64).encode()


@pytest.fixture(autouse=True)
def _still_answers(server):
    yield
    assert (
        server.call("POST", "/predictions/petals", data=b"[5.1,3.5,1.4]").status_code
        == 200
    )


def ask(server, model: str, body: bytes, query: str = "", method: str = "POST") -> Any:
    return server.call(method, f"/predictions/{model}{query}", data=body)


def npy(array: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def png(width: int, height: int) -> bytes:
    """Return a valid PNG that declares this size but contains only the first rows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data))
            + kind
            + data
            + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(
        b"IHDR",
        struct.pack(
            ">IIBBBBB",
            width,
            height,
            8,
            0,
            0,
            0,
            0,
        ),
    )
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


def seven(kind: str) -> bytes:
    """Return the sample of a 7 in another file format."""
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    with image.open(SAMPLES / "7.png") as picture:
        picture.convert("RGB").save(file, kind)
    return file.getvalue()


# --- Good input


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("digit", range(10))
def test_a_picture_gets_its_label(server, digit, method):
    answer = ask(
        server, "digits", (SAMPLES / f"{digit}.png").read_bytes(), method=method
    )
    document = answer.json()
    assert {key: document[key] for key in ("model", "version", "task")} == {
        "model": "digits",
        "version": "tflite",
        "task": "image-classification",
    }
    best = document["predictions"]
    assert best[0]["label"] == str(digit)
    assert best[0]["index"] == digit
    assert len(best) == 5
    scores = [one["score"] for one in best]
    assert scores == sorted(scores, reverse=True)
    assert set(document["timing_ms"]) == {"queue", "pre", "infer", "post"}
    assert all(value >= 0 for value in document["timing_ms"].values())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_picture_formats_are_detected_from_bytes(server, kind):
    assert ask(server, "digits", seven(kind)).json()["predictions"][0]["label"] == "7"


def test_numbers_can_be_json_or_npy(server):
    values = np.random.default_rng(7).random((8, 8)).astype(np.float32)
    bodies = [
        json.dumps(values.tolist()).encode(),
        json.dumps(values.reshape(-1).tolist()).encode(),
        b" \n" + json.dumps(values.reshape(1, 8, 8, 1).tolist()).encode(),
        npy(values),
        npy(values.reshape(1, 8, 8, 1)),
        npy(values.astype(np.float64)),
        npy(np.asfortranarray(values)),
        npy(values.astype(">f4")),
    ]
    answers = [
        ask(server, "digits", body, "?top_k=10").json()["predictions"]
        for body in bodies
    ]
    assert all(answer == answers[0] for answer in answers)


def test_features_can_be_named(server):
    named = {
        "petal_length": 1.4,
        "sepal_length": 5.1,
        "sepal_width": 3.5,
    }
    for body in (
        [5.1, 3.5, 1.4],
        [[5.1, 3.5, 1.4]],
        named,
        [named],
    ):
        (entry,) = ask(server, "petals", json.dumps(body).encode()).json()[
            "predictions"
        ]
        assert entry == {
            "name": "petal_width",
            "value": pytest.approx(0.22656),
            "unit": "cm",
        }
    assert (
        len(
            ask(server, "petals", json.dumps([named] * 3).encode()).json()[
                "predictions"
            ]
        )
        == 3
    )


def test_a_model_without_a_task_returns_its_tensors(kit_server):
    answer = ask(
        kit_server,
        "two_inputs",
        b'{"serving_default_a:0": [1, 2], "serving_default_b:0": [3, 4]}',
    ).json()
    assert answer["task"] == "tensors"
    assert answer["predictions"] == [
        {
            "name": "PartitionedCall:0",
            "datatype": "FP32",
            "shape": [2],
            "data": [4.0, 6.0],
        }
    ]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 5),
        ("?top_k=1", 1),
        ("?top_k=3", 3),
        ("?top_k=10000", 10),
        ("?threshold=2", 0),
    ],
)
def test_top_limits_the_answer(server, query, count):
    answer = ask(server, "digits", ZEROS, query).json()
    assert len(answer["predictions"]) == count


def test_the_threshold_is_exact(server):
    scores = []
    for one in ask(server, "digits", ZEROS, "?top_k=10").json()["predictions"]:
        scores.append(one["score"])
    kept = ask(server, "digits", ZEROS, f"?top_k=10&threshold={scores[3]!r}").json()[
        "predictions"
    ]
    assert [one["score"] for one in kept] == scores[:4]


def test_the_query_selects_the_version(server):
    assert (
        ask(server, "digits", ZEROS, "?version=tflite-int8").json()["version"]
        == "tflite-int8"
    )
    assert ask(server, "digits", ZEROS, "?version=").json()["version"] == "tflite"


# --- Bad input


PICTURE_FAULTS = {
    "empty": b"",
    "a text": b"this is not a picture",
    "a long text": b"lorem ipsum " * 10_000,
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "PDF": b"%PDF-1.7\n",
    "the first bytes of a PNG": b"\x89PNG\r\n\x1a\n",
    "a cut PNG": (SAMPLES / "7.png").read_bytes()[:60],
    "30,000 x 30,000": png(30_000, 30_000),
    "2**31 - 1 wide": png(2**31 - 1, 1),
    "0 x 0": png(0, 0),
    "JSON of another count": b"[1, 2, 3]",
    "broken JSON": b"[1, 2",
    "JSON texts": json.dumps(["0"] * 64).encode(),
    "JSON object": b'{"image": 7}',
    "JSON too deep": b"[" * 101 + b"]" * 101,
    "very deep JSON": b"[" * 100_000,
    "a number too large": json.dumps([1e300] * 64).encode(),
    "npy of another count": npy(np.zeros(63, np.float32)),
    "npy of texts": npy(np.array(["a"] * 64)),
    "npy of complex numbers": npy(np.zeros(64, np.complex64)),
    "npy of dates": npy(np.zeros(64, "datetime64[s]")),
    "npy of objects": npy(np.array([{}] * 64, object), allow_pickle=True),
    "a cut npy": npy(np.zeros(64, np.float32))[:-10],
    "the first bytes of a npy": b"\x93NUMPY",
    "a npy that says it is huge": npy(np.zeros(4, np.float32)).replace(
        b"(4,)", b"(99999999999999,)"
    ),
    "a npy with code in its header": npy(np.zeros(4, np.float32)).replace(
        b"'descr'", b"open(1)"
    ),
}


@pytest.mark.parametrize("body", PICTURE_FAULTS.values(), ids=PICTURE_FAULTS)
def test_invalid_pictures_and_numbers_are_rejected(server, refused, body):
    answer = ask(server, "digits", body)
    refused(answer, 400, answer.json()["code"])
    assert answer.json()["code"] in (
        "INVALID_INPUT",
        "INVALID_TENSOR",
        "MALFORMED_JSON",
    )


def test_a_too_large_picture_gets_the_limit(server, refused):
    text = refused(ask(server, "digits", png(30_000, 30_000)), 400, "INVALID_INPUT")
    assert "30000x30000" in text
    assert "max_image_pixels" in text


def test_a_setting_limits_the_size_of_pictures(new_server, models_copy, refused):
    server = new_server(models_copy, "--max-image-pixels", "4095")
    picture = (SAMPLES / "7.png").read_bytes()  # 64 x 64
    assert "4095" in refused(ask(server, "digits", picture), 400, "INVALID_INPUT")


FEATURE_FAULTS: dict[str, tuple[Any, str]] = {
    "a text": (b"hello", "numbers"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "numbers"),
    "a feature is missing": (
        {"sepal_length": 1, "sepal_width": 1},
        "'petal_length' is missing",
    ),
    "an unknown feature": (
        {"sepal_length": 1, "sepal_width": 1, "petal_length": 1, "colour": 1},
        "unknown feature 'colour'",
    ),
    "mixed rows": (
        [{"sepal_length": 1, "sepal_width": 1, "petal_length": 1}, [1, 2, 3]],
        "row 1",
    ),
    "too few": ([1, 2], "2 values do not make a whole row"),
    "none": ([], "got JSON of shape [0]"),
}


@pytest.mark.parametrize(
    ("body", "reason"), FEATURE_FAULTS.values(), ids=FEATURE_FAULTS
)
def test_wrong_features_are_named(server, refused, body, reason):
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert reason in refused(ask(server, "petals", sent), 400, "INVALID_INPUT")


@pytest.mark.parametrize(
    "query",
    [
        "top_k=0",
        "top_k=-1",
        "top_k=1.5",
        "top_k=10001",
        "top_k=many",
        "top_k=",
        "top_k=nan",
        "top_k=1&top_k=2",
        "top_k=1&top_k=1",
        "threshold=high",
        "threshold=nan",
        "timeout_ms=-1",
        "timeout_ms=inf",
        "timeout_ms=soon",
        "topk=3",
        "%00=1",
        "annotate=gif",
        "width=10",
        "format=jpeg",
        "rotation=45",
    ],
)
def test_invalid_query_parameters_are_rejected(server, refused, query):
    refused(ask(server, "digits", ZEROS, f"?{query}"), 400, "INVALID_PARAMETER")


@pytest.mark.assets
def test_a_public_classifier_names_a_burger(asset_server, assets):
    """The file's labels and normalisation suffice without a manifest."""
    picture = next((assets / "inputs" / "images").glob("burger.*")).read_bytes()
    answer = ask(
        asset_server, "mobilenet_v1_0.25_224_float_metadata", picture, "?top_k=3"
    ).json()
    assert answer["task"] == "image-classification"
    scores = np.load(
        assets
        / "expected"
        / "mnv1_025_float__burger.MobilenetV1_Predictions_Reshape_1.npy"
    )
    assert answer["predictions"][0]["index"] == scores.argmax()
    assert answer["predictions"][0]["label"] == "cheeseburger"


@pytest.mark.assets
def test_a_public_quantised_model_accepts_real_numbers(asset_server):
    """hello_world computes the sine.

    Its int8 version maps FP32 to FP32.
    """
    for model, tolerance in (("hello_world_float", 0.1), ("hello_world_int8", 0.1)):
        metadata = asset_server.call("GET", f"/v2/models/{model}").json()
        name = metadata["inputs"][0]["name"]
        for x in (0.5, 1.5, 3.0):
            item = {
                "name": name,
                "datatype": "FP32",
                "shape": [1, 1],
                "data": [x],
            }
            answer = asset_server.call(
                "POST", f"/v2/models/{model}/infer", json={"inputs": [item]}
            ).json()
            assert answer["outputs"][0]["datatype"] == "FP32"
            assert answer["outputs"][0]["data"][0] == pytest.approx(
                np.sin(x), abs=tolerance
            )


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("multipart/form-data; boundary=x", "curl -T FILE"),
        ("application/x-www-form-urlencoded", "curl -T FILE"),
    ],
)
def test_a_form_is_recognized(server, kind, hint):
    """Forms of ``curl -F`` and ``-d`` change a picture.

    The error suggests the right option.
    """
    answer = server.call(
        "POST",
        "/predictions/digits",
        data=b"--x\r\n\x89PNG",
        headers={"Content-Type": kind},
    )
    assert answer.status_code == 400
    assert hint in answer.json()["error"]


@pytest.mark.parametrize("model", ["digits", "petals"])
@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "application/octet-stream"]
)
def test_an_empty_body_is_called_empty(server, model, kind):
    answer = server.call(
        "POST", f"/predictions/{model}", data=b"", headers={"Content-Type": kind}
    )
    said = answer.json()["error"]
    assert (
        answer.status_code == 400
        and said.count("the body is empty") == 1
        and "curl" not in said
    ), said


def test_typed_json_is_not_mistaken_for_a_file(server):
    """Line ends don't matter in JSON, so curl's options are not the cause."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = server.call("POST", "/predictions/petals", data=b"[5.1]", headers=form)
    assert answer.status_code == 400
    assert "not make a whole row" in answer.json()["error"]
    assert "curl" not in answer.json()["error"]
