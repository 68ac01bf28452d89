"""An independent reader decodes the QR code in the terminal."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import zxingcpp

from pocketserve.cli import main
from pocketserve.cli.commands.token import qr_code
from pocketserve.terminal.errors import CommandError

LIGHT_OF = {
    "█": (255, 255),
    "▀": (255, 0),
    "▄": (0, 255),
    " ": (0, 0),
}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "token"


def picture(printed: str) -> np.ndarray:
    """Draw a terminal with light letters on dark.

    Returns uint8, (height, width), with four pixels per module.
    """
    lines = printed.splitlines()
    rows = [
        [LIGHT_OF[letter][half] for letter in line] for line in lines for half in (0, 1)
    ]
    return np.kron(np.array(rows, np.uint8), np.ones((4, 4), np.uint8))


def read(pixels: np.ndarray) -> str:
    (found,) = zxingcpp.read_barcodes(pixels)
    assert found.format in (zxingcpp.BarcodeFormat.QRCode,)
    return found.text


@pytest.mark.parametrize("ground", ["dark terminal", "light terminal"])
def test_a_reader_finds_the_address(capsys, token_file, ground) -> None:
    words = ["--token-file", str(token_file), "--http-port", "9470"]
    assert main(["token", "--qr", *words]) == 0
    pixels = picture(capsys.readouterr().out)
    assert main(["token", "--uri", *words]) == 0
    address = capsys.readouterr().out.strip()
    assert address.startswith("pocketserve://pair?http=9470&")
    assert address.endswith(f"&token={token_file.read_text().strip()}")
    assert read(pixels if ground == "dark terminal" else 255 - pixels) == address
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600


def test_every_token_gives_a_code_that_fits_eighty_columns() -> None:
    for length in (32, 43, 64):
        text = "pocketserve://pair?http=8470&socket=8471&token=" + "_" * length
        printed = qr_code(text)
        assert read(picture(printed)) == text
        assert max(map(len, printed.splitlines())) <= 80
        assert len({len(line) for line in printed.splitlines()}) == 1


def test_a_code_fits_a_phone_or_reports_its_size(monkeypatch) -> None:
    text = "pocketserve://pair?http=8470&socket=8471&token=" + "_" * 43
    monkeypatch.setenv("COLUMNS", "45")
    printed = qr_code(text)
    assert read(picture(printed)) == text
    assert {len(line) for line in printed.splitlines()} == {45}
    monkeypatch.setenv("COLUMNS", "44")
    with pytest.raises(
        CommandError,
        match=r"is 45 columns wide and the terminal 44: .* `pocketserve pair`",
    ):
        qr_code(text)


def test_a_port_that_is_not_known_yet(capsys, token_file) -> None:
    assert (
        main(["token", "--uri", "--token-file", str(token_file), "--http-port", "0"])
        == 1
    )
    assert "--http-port" in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "segno", None)
    with pytest.raises(CommandError, match=r"python -m pip install segno$"):
        qr_code("x")


def test_the_options_exclude_each_other(token_file) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["token", "--qr", "--json", "--token-file", str(token_file)])
    assert caught.value.code == 2
