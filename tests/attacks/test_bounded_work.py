"""Bound the time and memory that a small authenticated request can cost."""

from __future__ import annotations

import io
import shutil
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from conftest import MODELS, Server, start_server
from pocketserve.engine.lifecycle.byte_budget import ByteBudget
from pocketserve.repository import repository as repositories
from pocketserve.repository.repository import Repository
from pocketserve.repository.scan import Models, scan
from pocketserve.tasks.audio.resampling import BLOCK, resample
from pocketserve.tasks.cancellation import cancellation_scope
from pocketserve.tasks.tabular.tables import MAX_ROWS
from pocketserve.tasks.vision import pictures
from pocketserve.tasks.vision.picture_headers import MAX_SCANS, scans_of
from pocketserve.tasks.vision.pictures import PictureShape, read_picture
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve_wire import ApiError, ErrorCode

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

SHAPE = PictureShape(8, 8, 3)
MANY = 8


def png(width: int, height: int) -> bytes:
    """Return a small black RGB picture."""
    rows = zlib.compressobj(9)
    packed = b"".join(
        [*(rows.compress(bytes(3 * width + 1)) for _ in range(height)), rows.flush()]
    )
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", packed),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data))
        + name
        + data
        + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def jpeg(size: tuple[int, int], *, progressive: bool) -> bytes:
    """Return a JPEG with varied contents."""
    target = io.BytesIO()
    pixels = np.indices((size[1], size[0])).sum(axis=0).astype(np.uint8)
    Image.fromarray(
        np.stack(
            [
                pixels,
                pixels // 2,
                255 - pixels,
            ],
            2,
        )
    ).save(target, "JPEG", progressive=progressive)
    return target.getvalue()


def with_scans(file: bytes, count: int) -> bytes:
    """Repeat the last scan of a progressive JPEG.

    A scan of 14 bytes changes nothing, but the decoder walks the whole picture for it.
    """
    again = file[file.rindex(b"\xff\xda") :].removesuffix(b"\xff\xd9")
    return file.removesuffix(b"\xff\xd9") + again[:14] * count + b"\xff\xd9"


def refusal(file: bytes, max_pixels: int = 64_000_000) -> str:
    """Return the reason for which a picture is refused."""
    with pytest.raises(ApiError) as raised:
        read_picture(memoryview(file), SHAPE, ImageOptions(), max_pixels)
    assert raised.value.code is ErrorCode.INVALID_INPUT
    return raised.value.message


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server whose requests share 16 MiB for decoding."""
    root = tmp_path_factory.mktemp("bounded")
    models = root / "models"
    models.mkdir()
    shutil.copytree(MODELS / "digits", models / "digits")
    shutil.copytree(MODELS / "petals", models / "petals")
    (root / "server").mkdir()
    running = start_server(root / "server", models, "--decode-budget", "16MiB")
    yield running
    assert running.stop() == 0


def test_a_jpeg_with_thousands_of_scans_is_refused() -> None:
    file = jpeg((64, 64), progressive=True)
    assert scans_of(file) <= 20
    read_picture(memoryview(file), SHAPE, ImageOptions(), 64_000_000)
    many = with_scans(file, 3000)
    # a file with tables only; the decoder reads on after it
    tables = b"\xff\xd8\xff\xd9"
    for sent in (many, tables + many):
        assert f"more scans than the {MAX_SCANS}" in refusal(sent)


@pytest.mark.parametrize("again", [14, None], ids=["headers", "whole"])
def test_only_the_first_scan_of_a_complete_baseline_jpeg_is_decoded(
    again: int | None,
) -> None:
    # Scans of such files are not counted, because the decoder stops after the first
    # one.
    file = jpeg((64, 64), progressive=False).removesuffix(b"\xff\xd9")
    scan = file[file.rindex(b"\xff\xda") :][:again]
    end = b"\xff\xd9" + b"\xff\xda" * 2 * MAX_SCANS  # bytes after this one are ignored
    read_picture(memoryview(file + end), SHAPE, ImageOptions(), 64_000_000)
    assert "cannot be decoded" in refusal(file + scan + end)
    assert "cannot be decoded" in refusal(file + scan * 3000 + end)


def test_larger_jpegs_may_have_fewer_scans() -> None:
    file = with_scans(jpeg((1100, 1000), progressive=True), 40)
    read_picture(memoryview(file), SHAPE, ImageOptions(), 64_000_000)
    assert "more scans than the 16" in refusal(file, max_pixels=1_100_000)


def test_markers_inside_a_profile_are_not_scans() -> None:
    file = jpeg((64, 64), progressive=False)
    profile = b"\xff\xe2" + struct.pack(">H", 2 + 2 * 300) + b"\xff\xda" * 300
    assert scans_of(file[:2] + profile + file[2:]) == 1


@pytest.mark.parametrize(
    "unit",
    [b"\xff", b"\xff\xda", b"\xff\xda\x00\x02", b"\xff\xe0\x00\x02", b"\xff\x00"],
)
def test_scans_are_counted_in_one_pass(unit: bytes) -> None:
    assert scans_of(b"\xff\xd8" + unit * (2**22 // len(unit))) >= 0


@pytest.mark.parametrize(
    "size",
    [
        (1, 40_000),
        (40_000, 1),
    ],
)
def test_a_picture_of_one_long_line_is_refused(size: tuple[int, int]) -> None:
    assert "a side may have 32767" in refusal(png(*size))


def test_decoding_a_picture_stops_when_the_request_is_abandoned() -> None:
    file = png(3000, 3000)
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ApiError(ErrorCode.CANCELLED, "given up")

    with cancellation_scope(check), pytest.raises(ApiError, match="given up"):
        read_picture(memoryview(file), SHAPE, ImageOptions(), 64_000_000)


def test_resampling_a_sound_stops_when_the_request_is_abandoned() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1

    with cancellation_scope(check):
        resample(np.zeros((4 * BLOCK, 1), np.float32), 16_000, 16_001)
    assert calls >= 4


def test_concurrent_pictures_share_one_decoding_budget() -> None:
    budget = ByteBudget(2**20)
    maximum = 0

    def check() -> None:
        nonlocal maximum
        maximum = max(maximum, budget.reserved)

    def read(file: bytes) -> None:
        with cancellation_scope(check, budget):
            read_picture(memoryview(file), SHAPE, ImageOptions(), 64_000_000)

    files = [
        png(300, 300),
        jpeg((300, 300), progressive=True),
        jpeg((300, 300), progressive=False),
    ]
    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(read, files * MANY))
    assert 300 * 300 * 8 <= maximum <= 2**20
    assert budget.reserved == 0


def peak_bytes(server: Server) -> int:
    """Return the server's peak memory."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(
        int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")
    )


@pytest.mark.live
@pytest.mark.alone
def test_many_large_concurrent_requests_share_a_memory_budget(server: Server) -> None:
    def ask(model: str, body: bytes) -> int:
        with server.connect() as framed:
            return framed.call(f"POST /predictions/{model}", body).status

    # Incomplete rows: refused once they are read.
    numbers = b"[" + b"1.5," * 1_000_000 + b"1.5]"
    assert ask("digits", png(28, 28)) == 200
    assert ask("petals", b"[1,2,3]") == 200
    before = peak_bytes(server)
    with ThreadPoolExecutor(MANY) as pool:  # the number of concurrent token checks
        requests = [("digits", png(2000, 1500)), ("petals", numbers)] * MANY
        assert (
            list(pool.map(lambda request: ask(*request), requests)) == [200, 400] * MANY
        )
    # 8 bodies of 4 MB, and one request's pixels or numbers.
    assert peak_bytes(server) - before < 160 * 2**20


@pytest.mark.live
def test_json_and_csv_tables_have_the_same_row_limit(server: Server) -> None:
    body = b"[" + b"1,2,3," * MAX_ROWS + b"1,2,3]"
    with server.connect() as framed:
        answer = framed.call("POST /predictions/petals", body)
    assert answer.status == 400
    assert b"more than 100000" in answer.body


def test_concurrent_calls_share_one_folder_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = []
    begun = threading.Event()
    go_on = threading.Event()

    def slow(root: Path, only: Path | None) -> Models:
        scans.append(root)
        begun.set()
        assert go_on.wait(120)
        return scan(root, only)

    repository = Repository(tmp_path)
    monkeypatch.setattr(repositories, "scan", slow)
    with ThreadPoolExecutor(MANY) as pool:
        first = pool.submit(repository.refresh)
        assert begun.wait(120)
        (tmp_path / "late.tflite").write_bytes(b"\0\0\0\0TFL3")
        others = [pool.submit(repository.refresh) for _ in range(MANY - 1)]
        go_on.set()
        for call in [first, *others]:
            call.result(120)
    assert len(scans) <= MANY
    assert "late" in repository.models()


@pytest.mark.parametrize("hidden", [b"\xff\xd9", b"\xff\xc8\xff\xff"])
def test_a_jpeg_with_a_million_segments_is_refused(
    hidden: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such segments follow the end marker.

    Each costs Pillow a hundred bytes.
    """
    monkeypatch.setattr(pictures, "MAX_READS", 10_000)
    file = jpeg((8, 8), progressive=False)
    assert "more than 10000 pieces" in refusal(
        file[:2] + hidden + b"\xff\xe0\0\2" * 12_000 + file[2:]
    )


@pytest.mark.parametrize("at", [33, -12])
def test_a_png_with_a_million_chunks_is_refused(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MAX_READS", 10_000)
    file = png(8, 8)
    chunk = struct.pack(">I4sI", 0, b"abCd", zlib.crc32(b"abCd"))
    assert "more than 10000 pieces" in refusal(file[:at] + chunk * 12_000 + file[at:])
