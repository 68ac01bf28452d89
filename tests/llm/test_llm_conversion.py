"""Convert folders of language models to GGUF, with the real tool and a wrong one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from folder_files import CONFIG, write_folder
from places import ROOT
from pocketserve.cli import main
from pocketserve_lab.commands import convert as command
from pocketserve_lab.convert import plan
from pocketserve_lab.convert.converter import ConversionError, ConversionRequest
from pocketserve_lab.convert.environments import FOLDER_VARIABLE
from pocketserve_lab.language import conversion, gguf_folder, gguf_tool
from pocketserve_lab.language.texts import TOKEN_TEXTS

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


def test_a_tokenizer_that_changes_the_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_folder(tmp_path / "chat")
    lowercase = {"normalizer": {"type": "Lowercase"}}
    change_file(config.parent / "tokenizer.json", lowercase)
    assert convert(tmp_path) == 1
    assert "llama.cpp doesn't know its tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--to", "gguf,onnx"), ("--to", "onnx")])
def test_other_kinds_are_refused_with_a_reason(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "chat")
    assert convert(tmp_path, *words) == 1
    assert "gguf" in capsys.readouterr().err


def test_all_of_a_language_model_uses_its_converter(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(self: conversion.LanguageConverter, kind: str) -> None:
        raise ConversionError(f"asked for {kind}")

    monkeypatch.setattr(conversion.LanguageConverter, "convert", refuse)
    # Its environment would be made by any other converter.
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "none"))
    write_folder(tmp_path / "models" / "chat")
    words = ["convert", "chat", "--to", "all", "--models-dir", str(tmp_path / "models")]
    assert main(words) == 1
    assert "asked for gguf" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_all_leaves_language_models_out_of_a_folder_of_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "reachable_kinds", lambda *_: ["onnx", "gguf"])
    options = argparse.Namespace(quantize="none")
    entry = SimpleNamespace(versions={})
    selected: Any = SimpleNamespace(entry=entry, version=None)
    assert command._reachable_kinds(options, selected) == ["onnx"]


def request_for(config: Path) -> ConversionRequest:
    work = config.parent.parent / "work"
    work.mkdir()
    return ConversionRequest(config, "transformers", work / "m.gguf")


def write_folder_with_code(folder: Path, **settings: Any) -> tuple[Path, Path]:
    """Write a folder whose tokenizer is code that writes a file.

    Returns:
        its ``config.json``, and the file that the code writes.
    """
    config = write_folder(folder)
    written = folder.parent / "written"
    lines = [
        "from pathlib import Path",
        "from transformers import PreTrainedTokenizerFast",
        f"Path({str(written)!r}).touch()",
        "class Tokenizer(PreTrainedTokenizerFast):",
        "    pass",
    ]
    (folder / "own.py").write_text("\n".join(lines))
    reference = f"{folder}--own.Tokenizer"
    settings["auto_map"] = {"AutoTokenizer": [reference, None]}
    change_file(folder / "tokenizer_config.json", settings)
    change_file(config, {"auto_map": {"AutoTokenizer": reference}})
    return config, written


def change_file(file: Path, changes: dict[str, Any]) -> None:
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | changes))


def test_the_tool_gets_no_code(tmp_path: Path) -> None:
    config, _ = write_folder_with_code(tmp_path / "chat")
    change_file(config, {"inner": [{"auto_map": {"AutoModel": "own.Model"}}]})
    target = tmp_path / "copy"
    gguf_folder.copy_without_code(config.parent, target)
    names = {path.name for path in target.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "own.py" not in names
    for name in ("config.json", "tokenizer_config.json"):
        assert not (target / name).is_symlink()
        text = (target / name).read_text()
        assert "auto_map" not in text
        assert "--" not in text


def test_code_named_by_its_path_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, written = write_folder_with_code(tmp_path / "chat")
    assert convert(tmp_path, "--json") == 0
    (version,) = json.loads(capsys.readouterr().out)["versions"]
    assert version["agreement"]["error"] < 1e-3
    assert not written.exists()


def test_a_tokenizer_that_makes_the_tool_run_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "HybridDNATokenizer"
    config, written = write_folder_with_code(tmp_path / "chat", tokenizer_class=name)
    architectures = ["MistralForCausalLM"]
    change_file(config, {"model_type": "mistral", "architectures": architectures})
    result = convert(tmp_path)
    assert not written.exists()
    assert result == 1
    assert f"class '{name}' is none of" in capsys.readouterr().err


@pytest.mark.parametrize("is_imported", [False, True])
def test_the_library_loads_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool
) -> None:
    _, written = write_folder_with_code(tmp_path / "chat")
    lines = [
        "import sys",
        "from pathlib import Path",
        "from pocketserve_lab.language.gguf_folder import forbid_code",
        "if sys.argv[2] == 'True':",
        "    from transformers import AutoTokenizer",
        "forbid_code(Path(sys.argv[1]).parent / 'hub')",
        "from transformers import AutoTokenizer",
        "AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)",
    ]
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    command = [sys.executable, "-c", "\n".join(lines)]
    words = [*command, str(tmp_path / "chat"), str(is_imported)]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "the model's folder names code, which never runs" in process.stderr
    assert not written.exists()


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("config.json", {"architectures": ["FalconForCausalLM"]}, "it is for Llama"),
        ("config.json", {"architectures": ["LlamaForCausalLM"] * 2}, "it is for Llama"),
        (
            "config.json",
            {"text_config": {"architectures": ["QWenLMHeadModel"]}},
            "several models .text_config",
        ),
        ("config.json", {"llm_config": {}}, "several models .llm_config"),
        ("config.json", {"tokenizer_class": "Own"}, "class 'Own' is none of"),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "HybridDNATokenizer"},
            "class 'HybridDNATokenizer' is none of",
        ),
    ],
)
def test_other_architectures_and_tokenizers_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], reason: str
) -> None:
    config, written = write_folder_with_code(tmp_path / "chat")
    change_file(config.parent / name, changes)
    with pytest.raises(ConversionError, match=reason):
        gguf_tool.convert(request_for(config))
    assert not written.exists()


DIGITS: dict[str, Any] = {"type": "Digits", "individual_digits": True}
BYTES: dict[str, Any] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "use_regex": True,
}
BPE: dict[str, Any] = {"type": "BPE", "dropout": None, "ignore_merges": False}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


@pytest.mark.parametrize(
    ("splitting", "changes", "name"),
    [
        (sequence(DIGITS, BYTES), {}, "smollm"),
        (BYTES, {}, "gpt-2"),
        (sequence(BYTES, DIGITS), {}, None),
        ({"type": "Metaspace"}, {}, None),
        (None, {}, None),
        (BYTES | {"add_prefix_space": True}, {}, None),
        (BYTES | {"use_regex": False}, {}, None),
        ({"type": "ByteLevel"}, {}, None),
        (sequence(DIGITS, BYTES | {"use_regex": False}), {}, None),
        (sequence(DIGITS | {"individual_digits": False}, BYTES), {}, None),
        (BYTES, {"normalizer": {"type": "NFC"}}, None),
        (BYTES, {"normalizer": {"type": "Lowercase"}}, None),
        (BYTES, {"model": {"type": "WordLevel"}}, None),
        (BYTES, {"model": BPE | {"ignore_merges": True}}, None),
        (BYTES, {"model": BPE | {"end_of_word_suffix": "</w>"}}, None),
    ],
)
def test_a_tokenizer_is_recognised_by_its_form(
    splitting: Any, changes: dict[str, Any], name: str | None
) -> None:
    form = {"normalizer": None, "pre_tokenizer": splitting, "model": BPE, **changes}
    if name is None:
        with pytest.raises(NotImplementedError):
            gguf_tool.splitter_of(form)
        return
    assert gguf_tool.splitter_of(form) == name


def test_other_tokens_are_refused() -> None:
    original = conversion._Reading([], 1.0, [[1, 2]] * len(TOKEN_TEXTS))
    changed = [*original.tokens[1:], [2, 2]]
    conversion._check_tokens(original, original)
    with pytest.raises(ConversionError, match="as other tokens"):
        conversion._check_tokens(original, original._replace(tokens=changed))


def test_the_folder_of_the_tests_is_of_a_known_family() -> None:
    assert CONFIG["architectures"][0].startswith(gguf_folder.FAMILIES)
