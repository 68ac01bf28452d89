"""Test generated classes: interface, fingerprint, names, escapes, limits, command.

That they compile and answer is tested in ``codegen/test_codegen.py``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codegen_models import HOSTILE_LABELS
from conftest import MODELS, Server, start_server
from pocketserve import __version__
from pocketserve.cli import main
from pocketserve.task_registry import TASK_NAMES, task_named
from pocketserve_client import Client
from pocketserve_lab.codegen import names
from pocketserve_lab.codegen.escapes import (
    comment,
    java_string,
    kotlin_string,
    typescript_key,
    typescript_string,
)
from pocketserve_lab.codegen.names import (
    RESERVED,
    TYPESCRIPT_CLASSES,
    USED_CLASSES,
    NameFaultError,
    camel_case,
    check_class,
    check_package,
    class_case,
    constant_case,
    distinct,
)
from pocketserve_lab.codegen.render import ClassRequest, render_class
from pocketserve_lab.codegen.view import (
    KINDS,
    MAX_ENUM,
    MAX_LABEL,
    TAKES,
    default_class,
    read_interface,
)

LANGUAGES = ("java", "kotlin")


def interface(**changes: Any) -> dict[str, Any]:
    """Return an answer of ``GET /v2/models/NAME/interface``."""
    label = {"name": "label", "kind": "label", "meaning": "the class"}
    return {
        "name": "m",
        "version": "1",
        "fingerprint": "0" * 32,
        "task": "image-classification",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2]}],
        "labels": ["a", "b"],
        "calls": [
            {
                "verb": "classify",
                "takes": "picture",
                "entry": "Classification",
                "fields": [label],
            }
        ],
        "about": {},
        **changes,
    }


def render(language: str, **changes: Any) -> str:
    """Return the class of such an answer."""
    return render_class(
        read_interface(interface(**changes)),
        ClassRequest("m", language, "com.example", "M", None),
    )


@pytest.mark.parametrize("name", TASK_NAMES)
def test_every_task_has_a_form(name: str) -> None:
    """Tensors have none, and chats have their own clients."""
    calls = task_named(name).calls
    assert bool(calls) == (name not in ("custom", "tensors", "text-generation"))
    fields = [field for call in calls for field in call.fields]
    fields += [inner for field in fields for inner in field.fields]
    assert {call.takes for call in calls} <= TAKES
    assert {field.kind for field in fields} <= KINDS
    assert all(
        field.meaning and (field.kind != "list" or field.entry) for field in fields
    )


def test_names_are_valid_identifiers() -> None:
    assert camel_case("sepal length (cm)", "x") == "sepalLengthCm"
    assert camel_case("petal_width", "x") == "petalWidth"
    assert camel_case("class", "x") == "classValue"
    assert camel_case("getClass", "x") == "getClassValue"
    assert camel_case("1st", "x") == "x1st"
    assert camel_case("σκύλος", "x") == "x"
    assert camel_case("", "x") == "x"
    assert constant_case("Éclair au café", "LABEL", 0) == "ECLAIR_AU_CAFE"
    assert constant_case("7 dwarfs", "LABEL", 3) == "LABEL_7_DWARFS"
    assert constant_case("σ", "LABEL", 3) == "LABEL_3"
    assert class_case("mobilenet_v2-1.0") == "MobilenetV210"
    assert class_case("7up") == "Model7up"
    assert class_case("tensor") == "TensorModel"
    assert class_case("σ") == "Model"
    assert len(constant_case("a" * 5000, "LABEL", 0)) == 60


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("names", [("image", "image_shape"), ("imageShape", "image")])
def test_an_inputs_sizes_have_a_separate_name(
    language: str, names: tuple[str, str]
) -> None:
    """Detectors take a picture of any size and its shape beside it."""
    inputs = [{"name": name, "datatype": "FP32", "shape": [-1, -1]} for name in names]
    assert sorted(
        tensor.variable for tensor in read_interface(interface(inputs=inputs)).inputs
    ) == [
        "image",
        "imageShapeValue",
    ]
    lines = []
    for line in render(language, inputs=inputs).splitlines():
        if " infer(" in line and "imageShape" in line:
            lines.append(line)
    sizes = "imageShape: LongArray"
    if language == "java":
        sizes = "long[] imageShape,"
    assert f"{lines[0]},".replace(")", ",").count(sizes) == 1


def test_names_that_differ_in_case_only_are_told_apart() -> None:
    names = distinct(["CRANE", "CRANE", "CRANE_1", "crane", "OTHER"])
    assert names[0] == "CRANE"
    assert names[-1] == "OTHER"
    assert len({name.casefold() for name in names}) == 5


def test_class_names_do_not_hide_those_in_the_templates() -> None:
    """A class Throws would replace Kotlin's annotation in its file."""
    templates = Path(names.__file__).parent / "templates"
    code = "\n".join(
        line
        for path in templates.glob("[hjk]*.j2")  # of Java and Kotlin
        for line in path.read_text("utf-8").splitlines()
        if not line.strip().startswith(("*", "/**", "{#", "//"))
    )
    annotations = set(re.findall(r"@(\w+)", code))
    arrays = set(re.findall(r"\b\w+Array(?:List)?\b", code)) - {"toArray"}
    made = set(re.findall(r"\b(?:new|throw new) (\w+)", code))
    assert {"Throws", "Override"} <= annotations
    assert "FloatArray" in arrays
    assert "IllegalArgumentException" in made
    assert annotations | arrays | made <= USED_CLASSES
    typescript = (templates / "typescript.j2").read_text("utf-8")
    arrays = set(re.findall(r"\b\w+Array\b", typescript))
    assert arrays - {"isArray"} <= TYPESCRIPT_CLASSES


@pytest.mark.parametrize(
    "name",
    [
        "",
        "digits",
        "Di gits",
        "Di\n",
        "D$",
        "Label",
        "Row",
        "PocketServe",
        "Classification",
    ],
)
def test_impossible_class_names_are_refused(name: str) -> None:
    with pytest.raises(NameFaultError, match="--class"):
        check_class(name, {"Classification"})


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Com.x",
        "com..x",
        "com.class",
        "com.fun",
        "a" * 201,
        "../x",
        "com.x;",
        "java.x",
    ],
)
def test_impossible_package_names_are_refused(name: str) -> None:
    with pytest.raises(NameFaultError, match="--package"):
        check_package(name)


@pytest.mark.parametrize(
    "text", [*HOSTILE_LABELS, "*/", "/*", "\\u002a/", "\ud800", "a" * 10_000]
)
def test_texts_cannot_leave_comments_and_literals(text: str) -> None:
    """Both are ASCII in one line."""
    inside = comment(text)
    assert inside.isascii()
    assert not any(sign in inside for sign in ("*/", "/*", "\\", "{", "<"))
    for literal in (java_string(text), kotlin_string(text)):
        assert literal.isascii()
        assert literal.isprintable()
        assert literal[0] == literal[-1] == '"'
        body = literal[1:-1].replace("\\\\", "")
        assert '"' not in body.replace('\\"', "")
    assert "$" not in kotlin_string(text).replace("\\$", "")


@pytest.mark.parametrize("before", ["\ud800", "é", "\U0001f600"])
def test_a_backslash_after_an_escape_is_not_part_of_it(before: str) -> None:
    """javac reads ahead after a surrogate's escape, and would merge two backslashes."""
    literal = java_string(f"{before}\\u002a\\\\u006e")
    assert literal.endswith('\\134u002a\\\\\\\\u006e"')
    assert kotlin_string("\ud800\\u002a") == '"\\ud800\\\\u002a"'


def test_the_card_cannot_leave_its_comment() -> None:
    for language in LANGUAGES:
        source = render(
            language,
            about={"description": "*/ class Evil {} /*\n*/", "license": "\\u002a/"},
        )
        assert "class Evil &#123;" in source
        assert "*/ class Evil" not in source
        assert "\\u002a/" not in source


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["label", "list", "real"])
@pytest.mark.parametrize(
    "meaning", ["*/ val x = evil() /*", "\\u002a/ val x = evil() /*", "é", ""]
)
def test_a_meaning_cannot_leave_its_comment(
    language: str, kind: str, meaning: str
) -> None:
    """Its first character begins a sentence in Kotlin."""
    field = {
        "name": "x",
        "kind": kind,
        "meaning": meaning,
        "entry": "Inner",
        "fields": [],
    }
    call = {
        "verb": "classify",
        "takes": "picture",
        "entry": "Classification",
        "fields": [field],
    }
    source = render(language, calls=[call])
    assert source.isascii()
    assert source.count("*/") == source.count("/*")
    assert "\\u" not in source


@pytest.mark.parametrize("language", LANGUAGES)
def test_many_labels_become_texts(language: str) -> None:
    """An enum has a size limit; beyond it, and for very long labels, a comment explains
    it.
    """
    assert f"L{MAX_ENUM - 1}(" in render(
        language, labels=[f"l{i}" for i in range(MAX_ENUM)]
    )
    for labels in ([f"l{i}" for i in range(20_000)], ["a", "b" * (MAX_LABEL + 1)]):
        source = render(language, labels=labels)
        assert "enum" not in source.replace("for an enum", "")
        assert f"It has {len(labels)} labels, too many" in source


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": 'x"'},
        {"inputs": [{"name": "x", "datatype": "X", "shape": []}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2**40]}]},
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1] * 33}]},
        {"outputs": [{"name": "x", "datatype": "FP32", "shape": []}] * 1001},
        {"calls": [{"verb": "x() {", "takes": "picture", "entry": "X", "fields": []}]},
        {"calls": [{"verb": "xx", "takes": "smells", "entry": "Xx", "fields": []}]},
        {"labels": [1]},
        {"labels": "ab"},
        {"name": None},
    ],
)
def test_an_invalid_interface_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        read_interface(interface(**change))


def test_a_class_is_never_named_like_its_members() -> None:
    assert default_class("classification", {"Classification"}) == "ClassificationModel"
    assert default_class("label", ()) == "LabelModel"
    assert {"Label", "Row", "Outputs"} <= USED_CLASSES
    assert {"class", "fun", "when", "synchronized"} <= RESERVED


# The command, on a real server


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server whose models may be changed: digits, a copy with another label,
    petals.
    """
    models = tmp_path_factory.mktemp("models")
    for name in ("digits", "petals"):
        shutil.copytree(MODELS / name, models / name)
    shutil.copytree(MODELS / "digits", models / "other")
    (models / "other/labels.txt").write_text("zero\n" + "\n".join("123456789") + "\n")
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


def codegen(server: Server, *words: str) -> int:
    """Run the command."""
    where = ("--url", server.url, "--token-file", server.ready["token_file"])
    return main(["codegen", *words, "--package", "com.example.app", *where])


@pytest.mark.live
def test_the_fingerprint_depends_on_the_interface_only(live: Server) -> None:
    """Versions with equal interfaces share it; another label changes it."""
    with Client(live.url, live.token) as client:
        digits = client.model_interface("digits")
        again = client.model_interface("digits", "tflite")
        assert digits == again
        assert (
            client.model_metadata("digits")["parameters"]["fingerprint"]
            == digits["fingerprint"]
        )
        assert client.model_interface("other")["fingerprint"] != digits["fingerprint"]
        assert client.model_interface("other")["inputs"] == digits["inputs"]
        assert client.model_interface("petals")["features"][0]["unit"] == "cm"
        # Learned shapes are ignored.
        assert client.predict("digits", MODELS / "digits/samples/7.png")
        assert client.model_interface("digits") == digits


@pytest.mark.live
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_class_can_tell_that_it_is_stale(
    live: Server, tmp_path: Path, language: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        codegen(live, "digits", "--language", language, "--output", str(tmp_path)) == 0
    )
    file = Path(capsys.readouterr().out.strip())
    assert file.parent == tmp_path / "com/example/app"
    assert file.stem == "Digits"
    assert list(file.parent.iterdir()) == [file]
    source = file.read_bytes()
    assert source.isascii()
    assert __version__.encode() in source
    assert str(tmp_path).encode() not in source
    check = ("--language", language, "--check", str(file))
    assert codegen(live, "digits", *check) == 0
    assert file.read_bytes() == source
    assert codegen(live, "other", *check, "--class", "Digits") == 1
    assert "is out of date: generate it again" in capsys.readouterr().out
    assert codegen(live, "digits", "--language", language) == 0
    assert capsys.readouterr().out.encode() == source


@pytest.mark.live
def test_a_class_is_made_without_a_server(
    live: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Builds in CI use a file, a model's folder or a models folder."""
    assert codegen(live, "digits", "--language", "kotlin") == 0
    expected = capsys.readouterr().out
    words = ["--language", "kotlin", "--package", "com.example.app"]
    for source in (
        [str(MODELS / "digits")],
        [str(MODELS / "digits" / "digits.tflite")],
        ["digits", "--models-dir", str(MODELS)],
    ):
        assert main(["codegen", *source, *words]) == 0
        assert capsys.readouterr().out == expected
    file = tmp_path / "Digits.kt"
    file.write_text(expected)
    check = ["codegen", str(MODELS / "digits"), *words, "--check", str(file)]
    assert main(check) == 0
    file.write_text(expected + "\n")
    assert main(check) == 1
    assert main(["codegen", str(tmp_path / "none.tflite"), *words]) == 1
    assert "none.tflite" in capsys.readouterr().err


def test_typescript_literals_end_neither_early_nor_in_a_prototype() -> None:
    assert typescript_string('"\\\n\u2028σ') == '"\\"\\\\\\n\\u2028\\u03c3"'
    assert typescript_key("sepal_length") == "sepal_length"
    assert typescript_key("*/ evil") == '["*/ evil"]'
    assert typescript_key("__proto__") == '["__proto__"]'


def test_only_typescript_has_no_package(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["codegen", str(MODELS / "digits"), "--language"]
    assert main([*words, "typescript", "--package", "com.example"]) == 1
    assert "leave out --package" in capsys.readouterr().err
    assert main([*words, "java"]) == 1
    assert "needs --package" in capsys.readouterr().err
    assert main([*words, "typescript"]) == 0
    source = capsys.readouterr().out
    assert source.isascii()
    assert "export class Digits" in source
    assert main([*words, "typescript", "--class", "Promise"]) == 1
    assert "PromiseModel is free" in capsys.readouterr().err
    assert main([*words, "typescript", "--class", "NaN"]) == 1
    assert "NaNModel is free" in capsys.readouterr().err


@pytest.mark.live
def test_faults_of_the_command_are_explained(
    live: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in (
        (["nothing"], "'nothing' is not found"),
        (["digits", "--version", "x"], "'x'"),
        (["digits", "--class", "label"], "--class 'label' is not a class name"),
        (["digits", "--check", str(tmp_path / "None.java")], "write it with --output"),
    ):
        assert codegen(live, *words, "--language", "java") == 1
        assert sentence in capsys.readouterr().err
    bound = codegen(
        live, "digits", "--language", "java", "--version", "tflite", "--class", "Bound"
    )
    assert bound == 0
    assert "MODEL, VERSION, FINGERPRINT" in capsys.readouterr().out
