"""Convert folders of language models to GGUF, with the real tool and a wrong one."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from folder_files import CONFIG, write_folder
from places import ROOT
from pocketserve.cli import main
from pocketserve_lab.convert.converter import ConversionError, ConversionRequest
from pocketserve_lab.convert.environments import FOLDER_VARIABLE
from pocketserve_lab.language import conversion, gguf_tool

pytestmark = pytest.mark.llm


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    folder = os.environ.get(FOLDER_VARIABLE) or str(ROOT / ".converters")
    monkeypatch.setenv(FOLDER_VARIABLE, folder)


def convert(models: Path, *words: str) -> int:
    command = ["convert", "chat", "--to", "gguf", "--models-dir", str(models)]
    return main([*command, *words])


def test_a_folder_becomes_a_version_with_the_same_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "chat")
    assert convert(tmp_path, "--json") == 0
    (version,) = json.loads(capsys.readouterr().out)["versions"]
    assert version["agreement"]["error"] < 1e-3
    assert version["notes"][0].startswith("100% of its answers")
    assert convert(tmp_path, "--quantize", "q8_0") == 0
    sizes = []
    for name in ("chat.gguf", "chat.q8_0.gguf"):
        sizes.append((tmp_path / "chat" / name).stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]


def test_a_result_with_other_answers_is_not_published(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = dataclasses.replace(
        conversion.CONVERTER, module="children.wrong_gguf_tool", environment=None
    )
    monkeypatch.setattr(conversion, "CONVERTER", wrong)
    write_folder(tmp_path / "chat")
    before = sorted(path.name for path in (tmp_path / "chat").iterdir())
    assert convert(tmp_path) == 1
    assert "differs from the original: its loss" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "chat").iterdir()) == before


@pytest.mark.parametrize("words", [("--to", "gguf,onnx"), ("--to", "onnx")])
def test_other_kinds_are_refused_with_a_reason(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "chat")
    assert convert(tmp_path, *words) == 1
    assert "gguf" in capsys.readouterr().err


def request_for(config: Path) -> ConversionRequest:
    work = config.parent.parent / "work"
    work.mkdir()
    return ConversionRequest(config, "transformers", work / "m.gguf")


def test_the_tool_gets_no_code(tmp_path: Path) -> None:
    config = write_folder(tmp_path / "chat", auto_map={"AutoModel": "code.Model"})
    (tmp_path / "chat" / "code.py").write_text("raise SystemExit")
    target = tmp_path / "copy"
    gguf_tool.copy_without_code(config.parent, target)
    names = {path.name for path in target.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "code.py" not in names


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    architectures = ["FalconForCausalLM"]
    config = write_folder(tmp_path / "chat", architectures=architectures)
    with pytest.raises(ConversionError, match="it is for Llama"):
        gguf_tool.convert(request_for(config))


DIGITS: dict[str, Any] = {"type": "Digits", "individual_digits": True}
BYTES: dict[str, Any] = {"type": "ByteLevel"}


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ({"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}, "smollm"),
        (BYTES, "gpt-2"),
        ({"type": "Sequence", "pretokenizers": [BYTES, DIGITS]}, None),
        ({"type": "Metaspace"}, None),
        (None, None),
    ],
)
def test_a_tokenizer_is_recognised_by_its_form(
    tmp_path: Path, form: Any, name: str | None
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"pre_tokenizer": form}))
    if name is None:
        with pytest.raises(NotImplementedError):
            gguf_tool.splitter_of(file)
        return
    assert gguf_tool.splitter_of(file) == name


def test_the_folder_of_the_tests_is_of_a_known_family() -> None:
    assert CONFIG["architectures"][0].startswith(gguf_tool.FAMILIES)
