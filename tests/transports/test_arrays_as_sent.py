"""Pass arrays to a model exactly as sent, over both transports, or refuse them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import MODELS, Server, start_server
from pocketserve_client import Client, ServerError

onnx = pytest.importorskip("onnx", reason="makes the models")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

ECHOES: dict[str, tuple[str, tuple[int | str, ...]]] = {
    "tokens": ("INT64", ("rows", 9)),
    "anything": ("FLOAT", ("a", "b", "c")),
    "sequence": ("FLOAT", (1, "steps", 5)),
    "pictures": ("FLOAT", ("n", 3, 4, 4)),
    "fixed": ("FLOAT", (1, 2, 3)),
}
"""Datatype and shape of models that return their input."""


def echo(path: Path, datatype: str, shape: tuple[int | str, ...]) -> None:
    """Write a model that returns its input."""
    helper = onnx.helper
    kind = getattr(onnx.TensorProto, datatype)
    ends = [helper.make_tensor_value_info(name, kind, shape) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "echo", ends[:1], ends[1:]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path.write_bytes(model.SerializeToString())


def pair(path: Path, rows: tuple[str | None, str | None]) -> None:
    """Write a model that adds two inputs whose row counts share a name."""
    helper = onnx.helper
    kind = onnx.TensorProto.FLOAT
    ends = []
    for name, size in zip("ab", rows, strict=True):
        ends.append(helper.make_tensor_value_info(name, kind, [size, 4]))
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        "pair",
        ends,
        [helper.make_tensor_value_info("y", kind, [None, 4])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path.write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def echoes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on these models and the digits."""
    folder = tmp_path_factory.mktemp("echoes")
    for name, (datatype, shape) in ECHOES.items():
        echo(folder / f"{name}.onnx", datatype, shape)
    for name, rows in {
        "same": ("batch", "batch"),
        "table": ("batch", "entries"),
        "unnamed": (None, None),
    }.items():
        pair(folder / f"{name}.onnx", rows)
    (folder / "digits").mkdir()
    for name in ("digits.tflite", "model.toml", "labels.txt"):
        shutil.copy(MODELS / "digits" / name, folder / "digits")
    server = start_server(tmp_path_factory.mktemp("server"), folder)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module", params=["http", "socket"])
def client(request: pytest.FixtureRequest, echoes: Server) -> Iterator[Client]:
    """Return a client of each transport."""
    url = (
        echoes.url
        if request.param == "http"
        else f"socket://127.0.0.1:{echoes.socket_port}"
    )
    with Client(url, echoes.token) as connected:
        yield connected


def outcome(client: Client, model: str, data: Any) -> Any:
    """Return the array that the model received, or the refusal."""
    try:
        (entry,) = client.predict(model, data)["predictions"]
    except ServerError as error:
        return f"{error.code}: {error.message}"
    return np.array(entry["data"]).reshape(entry["shape"])


@settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    model=st.sampled_from([*ECHOES]),
    shape=st.lists(st.sampled_from([1, 2, 3, 4, 5, 9, 18]), max_size=4),
)
def test_no_array_is_reshaped(client: Client, model: str, shape: list[int]) -> None:
    """A batch of one and a flat list of rows are the only exceptions, in JSON and .npy."""
    datatype, own = ECHOES[model]
    array = (
        np.arange(np.prod(shape))
        .reshape(shape)
        .astype(np.int64 if datatype == "INT64" else np.float32)
    )
    as_npy, as_json = (outcome(client, model, data) for data in (array, array.tolist()))
    if isinstance(as_npy, str):
        assert as_npy.startswith("INVALID_INPUT")
        assert f"{shape}" in as_npy
        assert "expected" in as_npy
        assert isinstance(as_json, str)
        return
    np.testing.assert_array_equal(as_npy, as_json)
    kept = [dim for dim in as_npy.shape if dim != 1] == [
        dim for dim in shape if dim != 1
    ]
    assert kept or (len(shape) == 1 and sum(isinstance(dim, str) for dim in own) == 1)
    assert as_npy.reshape(-1).tolist() == array.reshape(-1).tolist()


OTHER_SHAPES = [
    *[("tokens", (2, 12)), ("tokens", (1, 2, 9)), ("tokens", (3, 6))],
    *[("anything", (2, 9, 1, 1)), ("anything", (12,)), ("sequence", (2, 1, 5))],
    *[
        ("pictures", (4, 4, 3)),
        ("pictures", (2, 3, 16)),
        ("fixed", (3, 2)),
        ("fixed", (2, 2, 3)),
    ],
]


@pytest.mark.parametrize(
    ("model", "shape"),
    OTHER_SHAPES,
)
def test_arrays_that_were_once_reshaped_are_refused(
    client: Client, model: str, shape: tuple[int, ...]
) -> None:
    """An equal number of elements doesn't make them the same array."""
    array = np.zeros(shape, np.int64 if model == "tokens" else np.float32)
    for data in (array, array.tolist()):
        assert f"{list(shape)}" in outcome(client, model, data)


def test_a_gru_keeps_its_rows(client: Client) -> None:
    array = np.arange(10, dtype=np.float32).reshape(1, 2, 5)
    assert outcome(client, "anything", array).shape == (1, 2, 5)
    assert outcome(client, "sequence", array[0]).shape == (1, 2, 5)


def test_pixels_are_no_real_numbers(client: Client) -> None:
    """A picture task accepts uint8, other models refuse it."""
    pixels = np.zeros((3, 4, 4), np.uint8)
    assert (
        "expected FP32 [-1, 3, 4, 4], got UINT8 [3, 4, 4]; send a picture as its file"
        in outcome(client, "pictures", pixels)
    )


def test_batches_of_two_inputs_must_match_if_they_share_a_name(client: Client) -> None:
    """Without a common name, other sizes are left to the model."""
    two = np.ones((2, 4), np.float32)
    one = np.ones((1, 4), np.float32)
    for _ in range(2):  # the second request is of a known kind
        for first, second in ((two, one), (one, two)):
            with pytest.raises(
                ServerError,
                match=r"input 'b' has \d rows?, input 'a' has \d; .*, 'batch'",
            ) as caught:
                client.infer("same", {"a": first, "b": second})
            assert caught.value.code == "INVALID_TENSOR"
            for model in ("table", "unnamed"):
                assert client.infer(model, {"a": first, "b": second})["y"].shape == (
                    2,
                    4,
                )
        assert client.infer("same", {"b": two, "a": two})["y"].tolist() == [[2] * 4] * 2
        assert client.predict("same", {"a": one.tolist(), "b": one.tolist()})[
            "predictions"
        ][0]["shape"] == [1, 4]


@pytest.mark.parametrize(
    "number",
    [
        "1e400",
        "-1e400",
        "1" + "0" * 400 + ".5",
    ],
)
def test_a_number_beyond_its_datatype_is_refused(client: Client, number: str) -> None:
    """It doesn't become infinity, which has a name of its own; answers have null
    instead.
    """
    for body in (f"[[[{number}]]]", f'{{"x": [[[{number}]]]}}'):
        with pytest.raises(ServerError, match="too large for FP32") as caught:
            client.predict("anything", body)
        assert caught.value.code == "INVALID_TENSOR"
    assert client.predict("anything", "[[[-Infinity]]]")["predictions"][0]["data"] == [
        None
    ]


def test_every_form_of_a_photo_gets_one_answer(client: Client) -> None:
    """The forms are an array, a Pillow image and a file."""
    pil = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    pixels = np.full((480, 640, 3), 255, np.uint8)
    pixels[100:380, 300:340] = (10, 20, 30)
    image = pil.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "PNG")
    answers = []
    for data in (file.getvalue(), pixels, pixels[None], image):
        answers.append(client.predict("digits", data)["predictions"])
    assert answers[0]
    assert all(answer == answers[0] for answer in answers)
    drawn = [
        client.predict("digits", data, annotate="png")
        for data in (file.getvalue(), pixels)
    ]
    assert drawn[0] == drawn[1]


def test_pillow_images_of_every_mode(client: Client) -> None:
    """Modes that PNG lacks are converted, those without a known white are refused, and
    EXIF rotates.
    """
    pil = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    seven = (
        pil.open(MODELS / "digits" / "samples" / "7.png")
        .convert("RGB")
        .resize((40, 60))
    )
    expected = client.predict("digits", seven)["predictions"][0]
    assert expected["label"] == "7"
    for mode in ("L", "RGBA", "P", "1", "CMYK", "YCbCr", "LAB", "HSV"):
        assert (
            client.predict("digits", seven.convert(mode))["predictions"][0]["label"]
            == "7"
        )
    for mode in ("F", "I"):
        with pytest.raises(TypeError, match=f"mode {mode} has no known white"):
            client.predict("digits", seven.convert("L").convert(mode))
    file = io.BytesIO()
    exif = pil.Exif()
    exif[0x0112] = 6  # to be rotated by 90 degrees
    seven.transpose(pil.Transpose.ROTATE_90).save(file, "PNG", exif=exif)
    assert client.predict("digits", pil.open(file))["predictions"][0] == expected
