"""List the readers of foreign bytes that need no framework.

Each has valid files to begin with, and its own errors.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conftest import MODELS, ROOT
from framed import feed
from pocketserve.formats import DamagedFileError
from pocketserve.formats.zip_archives import BadZipError, members, read_member
from pocketserve.repository.manifest import read_manifest
from pocketserve.repository.toml_table import ManifestError
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.onnx import check as onnx_check
from pocketserve.runtimes.onnx.class_names import read_class_outputs
from pocketserve.runtimes.registry import content_of
from pocketserve.runtimes.tensorflow import savedmodel_graph
from pocketserve.runtimes.tfjs import files as tfjs_files
from pocketserve.runtimes.tflite import check as tflite_check
from pocketserve.runtimes.tflite import description as tflite_description
from pocketserve.runtimes.torch.safetensors import read_safetensors
from pocketserve.tasks import arrays
from pocketserve.tasks.audio.wav import read_wav
from pocketserve.tasks.foreign.label_files import parse_labels
from pocketserve.tasks.tabular.tables import Rows
from pocketserve.tasks.text.sentencepiece_model import SentencePieceError, read_model
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import TensorSpec
from pocketserve_wire import ApiError, oip, strict_json
from pocketserve_wire.errors import ConnectionFaultError
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role

VECTORS = ROOT / "android_bridge" / "vectors"
DATA = ROOT / "tests" / "runtimes" / "data"
PIECES = ROOT / "tests" / "tasks" / "data"
MAX = 1 << 20


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        read: takes the content, and a folder of the test's own.
        corpus: valid contents.
        refuses: its errors for bad content; anything else is our fault.
        words: texts that are inserted anywhere.
    """

    read: Callable[[bytes, Path], Any]
    corpus: Callable[[], Sequence[bytes]]
    refuses: tuple[type[Exception], ...] = (ApiError,)
    words: Sequence[bytes] = ()


def _files(*paths: Path) -> Callable[[], Sequence[bytes]]:
    return lambda: [path.read_bytes() for path in paths]


def _beside(name: str, read: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    """Return a reader of files, for which the content is written to disk."""

    def read_file(content: bytes, folder: Path) -> Any:
        path = folder / name
        path.write_bytes(content)
        return read(path)

    return read_file


def _frames(content: bytes, folder: Path) -> None:
    for allowed in (
        ALLOWED[Role.SERVER, HandshakeState.READY],
        ALLOWED[Role.CLIENT, HandshakeState.READY],
    ):
        decoder = FrameDecoder(allowed, MAX)
        with suppress(ConnectionFaultError):
            for at in range(0, len(content), 100):
                feed(decoder, content[at : at + 100])


def _infer(content: bytes, folder: Path) -> None:
    for length in (None, content.find(b"]}") + 2):
        with suppress(ApiError):
            oip.decode_infer_request(memoryview(content), length)


def _requests() -> list[bytes]:
    tensor: dict[str, Any] = {
        "name": "x",
        "datatype": "FP32",
        "shape": [2, 2],
    }
    json_only = {
        "id": "7",
        "inputs": [tensor | {"data": [[1, 2], [3, 4.5]]}],
        "outputs": [{"name": "y"}],
    }
    binary = {"inputs": [tensor | {"parameters": {"binary_data_size": 16}}]}
    texts = {
        "inputs": [
            {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["a\u00e9"]}
        ]
    }
    return [
        *(json.dumps(one).encode() for one in (json_only, texts)),
        json.dumps(binary).encode() + bytes(16),
    ]


def _pictures() -> list[bytes]:
    import PIL.Image

    picture = PIL.Image.fromarray(np.indices((24, 20)).sum(axis=0).astype(np.uint8))
    made = []
    kinds = [
        ("JPEG", {"progressive": True}),
        *((form, {}) for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP")),
    ]
    for form, options in kinds:
        target = io.BytesIO()
        picture.convert("RGB" if form != "GIF" else "P").save(target, form, **options)
        made.append(target.getvalue())
    return made


def _picture(content: bytes, folder: Path) -> None:
    read_picture(memoryview(content), PictureShape(8, 8, 3), ImageOptions(), 1_000_000)


def _sounds() -> list[bytes]:
    def wav(code: int, bits: int, samples: bytes) -> bytes:
        import struct

        form = struct.pack(
            "<HHIIHH",
            code,
            1,
            8000,
            8000 * bits // 8,
            bits // 8,
            bits,
        )
        chunks = (
            b"fmt "
            + struct.pack("<I", 16)
            + form
            + b"data"
            + struct.pack("<I", len(samples))
            + samples
        )
        return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks

    return [
        wav(1, 16, bytes(64)),
        wav(3, 32, bytes(64)),
        wav(6, 8, bytes(range(64))),
        wav(1, 24, bytes(66)),
    ]


def _arrays() -> list[bytes]:
    made = []
    for array in (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(["a", "b"]),
        np.zeros((0, 3), np.int64),
    ):
        target = io.BytesIO()
        np.save(target, array)
        made.append(target.getvalue())
    return made


def _table(content: bytes, folder: Path) -> None:
    Rows(TensorSpec("x", "FP32", (-1, 3)), ("a", "b", "c")).read(memoryview(content))


def _zip(path: Path) -> None:
    content_of(path)
    for number, member in enumerate(members(path)):
        if number == 20:
            return
        read_member(path, member, MAX)


def _table_bodies() -> list[bytes]:
    return [
        b"a,b,c\n1,2,3\n",
        b"[[1,2,3],[4,5,6]]",
        b'[{"a":1,"b":2,"c":3}]',
        b"1,2,3\r\n",
    ]


def _tfjs(content: bytes, folder: Path) -> None:
    (folder / "weights.bin").write_bytes(
        (MODELS / "petals" / "tfjs" / "weights.bin").read_bytes()
    )
    (folder / "model.json").write_bytes(content)
    tfjs_files.read_files(folder / "model.json")


_TOML = (
    b'task = "',
    b"[versions.a]\n",
    b'labels = "x"\n',
    b"[[inputs]]\n",
    b"shape = [-1, 3]\n",
    b"'''",
    b"= {",
    b"\xff",
)
_JSON = (
    b"[" * 50,
    b'{"a":',
    b"1e400",
    b"-",
    b'"\\ud800"',
    b"NaN",
    b"[]",
    b"null",
    b"9" * 400,
)

READERS: dict[str, Reader] = {
    "frames": Reader(_frames, _files(*sorted((VECTORS / "valid").glob("*.bin"))[::7])),
    "json": Reader(
        lambda content, _: strict_json.loads(content),
        lambda: _requests()[:2],
        words=_JSON,
    ),
    "infer": Reader(_infer, _requests, words=_JSON),
    "manifests": Reader(
        _beside("model.toml", read_manifest),
        _files(
            *sorted(MODELS.glob("*/model.toml")),
            *sorted((ROOT / "tests" / "models").glob("*/model.toml")),
        ),
        (ManifestError,),
        _TOML,
    ),
    "TFLite metadata": Reader(
        _beside("m.tflite", tflite_description.read_metadata),
        _files(
            DATA / "metadata.tflite",
            ROOT / "tests" / "models" / "tones" / "tones.tflite",
        ),
        (DamagedFileError, ModelLoadError),
    ),
    "TFLite graphs": Reader(
        _beside("m.tflite", tflite_check.check_tflite_graphs),
        _files(
            DATA / "two_signatures.tflite",
            DATA / "strings.tflite",
            MODELS / "petals" / "petals.tflite",
        ),
        (DamagedFileError, ModelLoadError),
    ),
    "ONNX graphs": Reader(
        _beside("m.onnx", onnx_check.check_model),
        _files(MODELS / "petals" / "petals.onnx", MODELS / "digits" / "digits.onnx"),
        (DamagedFileError, ModelLoadError),
    ),
    "ONNX classes": Reader(
        _beside("m.onnx", read_class_outputs),
        _files(MODELS / "petals" / "petals.onnx", MODELS / "digits" / "digits.onnx"),
        (DamagedFileError,),
        (
            b"TreeEnsembleClassifier",
            b"classlabels_int64s",
            b"ArgMax",
            b"Gather",
            b"Concat",
            b"label",
        ),
    ),
    "labels": Reader(
        lambda content, _: [
            parse_labels(f"labels.{ending}", content) for ending in ("txt", "csv")
        ],
        lambda: [
            b"0 red\n1 green\n",
            b"red,0\r\ngreen,1",
            "rød\nblå".encode("utf-16"),
            b"index,name\n0,red\n",
        ],
        (DamagedFileError,),
        (b"0", b"\n", b",", b" ", b'"', b"\xff\xfe", b"\xef\xbb\xbf"),
    ),
    "labels in JSON": Reader(
        lambda content, _: parse_labels("labels.json", content),
        lambda: [
            b'["red", "green"]',
            b'{"0": "red", "1": ["n1", "green"]}',
            b'{"red": 0}',
            b'[{"id": 0, "name": "red"}]',
        ],
        (DamagedFileError,),
        _JSON,
    ),
    "label maps": Reader(
        lambda content, _: parse_labels("label_map.pbtxt", content),
        lambda: [
            b"item { id: 1 name: 'red' }\nitem {\n display_name: \"green\"\n id: 2\n}"
        ],
        (DamagedFileError,),
        (b"item", b"{", b"}", b"id:", b"name:", b"'"),
    ),
    "SavedModel graphs": Reader(
        _beside(
            "saved_model.pb",
            lambda path: savedmodel_graph.read_meta_graphs(path.parent),
        ),
        _files(MODELS / "petals" / "savedmodel" / "saved_model.pb"),
        (DamagedFileError, ModelLoadError),
    ),
    "TensorFlow.js": Reader(
        _tfjs,
        _files(MODELS / "petals" / "tfjs" / "model.json"),
        (ModelLoadError,),
        _JSON,
    ),
    "safetensors": Reader(
        _beside("w.safetensors", read_safetensors),
        _files(MODELS / "petals" / "weights.safetensors"),
        (ModelLoadError,),
        _JSON,
    ),
    "PyTorch zips": Reader(
        _beside("m.pt", _zip),
        _files(MODELS / "petals" / "petals.ptl", MODELS / "petals" / "petals.pt2"),
        (BadZipError,),
    ),
    "SentencePiece": Reader(
        lambda content, _: read_model(content),
        _files(PIECES / "unigram.model", PIECES / "bpe.model", PIECES / "char.model"),
        (SentencePieceError,),
    ),
    "pictures": Reader(_picture, _pictures),
    "sounds": Reader(
        lambda content, _: read_wav(memoryview(content), 60.0, mono=True), _sounds
    ),
    "arrays": Reader(lambda content, _: arrays.read_npy(memoryview(content)), _arrays),
    "tables": Reader(_table, _table_bodies, words=(*_JSON, b'"', b"\n", b";")),
}
