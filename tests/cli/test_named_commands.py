"""Commands quoted in messages exist, parse, and do as the message says."""

from __future__ import annotations

import ast
import io
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from conftest import MODELS, ROOT
from pocketserve.cli import command_parser, is_command, main
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.quarantine.verdicts import Verdict, VerdictStore
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.terminal.local import open_local
from pocketserve.trust.store import TrustStore
from pocketserve.trust.verified_files import not_trusted

Run = Callable[..., tuple[int, str, str]]
SOURCES = (
    "server/pocketserve",
    "client/pocketserve_client",
    "client/pocketserve_wire",
    "lab/pocketserve_lab",
    "lab/pocketserve_scale",
    "lab/pocketserve_simulate",
)
COMMAND = re.compile(r"`pocketserve ([^`]+)`")
PLACEHOLDER = re.compile(r"\b[A-Z]{3,}(/[A-Z]+)*\b|…")
DIGITS = MODELS / "digits" / "digits.tflite"


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Return a module's texts without docstrings, with ``x`` for f-string values."""
    docstrings = set()
    parts = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            docstrings.add(node.body[0].value)  # type: ignore[attr-defined]
        elif isinstance(node, ast.JoinedStr):
            parts.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(value.value) if isinstance(value, ast.Constant) else "x"
                for value in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings | parts
        ):
            yield node.value


def named_commands() -> list[str]:
    """Return the words after ``pocketserve`` in all messages."""
    commands = set()
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*.py"):
            for text in texts_of(ast.parse(file.read_text(encoding="utf-8"))):
                commands.update(COMMAND.findall(" ".join(text.split())))
    return sorted(commands)


@pytest.mark.parametrize("text", named_commands())
def test_commands_in_messages_parse(text: str) -> None:
    words = shlex.split(PLACEHOLDER.sub("x", text))
    if words[0] == "x":  # any command
        return
    if words == ["--help"]:
        return
    name = next(word for word in words if is_command(word))
    errors = io.StringIO()
    with redirect_stderr(errors):
        try:
            command_parser([name]).parse_args(
                [name, *(word for word in words if word != name)]
            )
        except SystemExit:
            # A message may omit further arguments that the reader knows.
            lacks = re.search(
                r"the following arguments are required: (.*)", errors.getvalue()
            )
            assert lacks is not None and len(words) == 1, errors.getvalue()


def test_messages_name_many_commands() -> None:
    assert len(named_commands()) > 30


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its exit code and output."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "state"


def command_in(message: str) -> list[str]:
    """Return the words after ``pocketserve`` in one message."""
    [text] = COMMAND.findall(message)
    return shlex.split(text)


def make_models(root: Path) -> dict[str, Path]:
    """Create models that may run code, in every layout."""
    paths = {
        "bare file": root / "one.ts",
        "bare folder": root / "two",
        "folder in a folder": root / "three" / "saved",
        "numbered": root / "four" / "1",
        "beside a manifest": root / "five" / "saved",
        "file beside a manifest": root / "six" / "m.ts",
        "odd name": root / "seven's" / "1",
    }
    for path in paths.values():
        if path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        else:
            path.mkdir(parents=True)
            (path / "saved_model.pb").write_bytes(b"x")
    for folder, file in (("five", "saved"), ("six", "m.ts")):
        (root / folder / "model.toml").write_text(f'[versions.v]\nfile = "{file}"\n')
    return paths


@pytest.mark.parametrize("layout", ["bare file", "bare folder", "folder in a folder", "numbered", "beside a manifest",
                                    "file beside a manifest", "odd name"])  # fmt: skip
def test_trust_allows_a_version_that_runs_code(
    layout: str, tmp_path: Path, state: Path, command: Run
) -> None:
    """The message comes from a runtime, which knows only the version's path."""
    path = make_models(tmp_path / "models")[layout]
    words = command_in(not_trusted(path, "its graph has the operator ReadFile"))
    code, out, err = command(*words, "--yes")
    assert code == 0 and "nothing to trust" not in out, (out, err)
    for entry in scan(tmp_path / "models").values():
        for version in entry.versions.values():
            if version.path == path:
                assert len(TrustStore(state).check(entry, version)) == 1
    again = command_in(next(line for line in out.splitlines() if "--revoke" in line))
    assert command(*again)[0] == 0
    assert not TrustStore(state).consents()


def test_trust_asks_again_for_further_code(
    tmp_path: Path, state: Path, command: Run
) -> None:
    """The first consent covers ``task.py``.

    Loading then shows that the model itself runs code.
    """
    path = make_models(tmp_path / "models")["bare folder"]
    (path / "task.py").write_text("x = 1\n")
    words = command_in(not_trusted(path, "its graph has the operator ReadFile"))
    assert command(*words, "--yes")[0] == 0
    entry = scan(tmp_path / "models")["two"]
    [version] = entry.versions.values()
    assert len(TrustStore(state).check(entry, version)) == 1
    code, out, _ = command(*words, "--yes")
    assert code == 0
    assert "may read and write files" in " ".join(out.split())
    assert len(TrustStore(state).check(entry, version)) == 2


@pytest.mark.parametrize("part", ["task.py", "evil.so"])
def test_trust_a_model_rejected_before_loading(
    tmp_path: Path, state: Path, command: Run, part: str
) -> None:
    home = tmp_path / "models" / "own"
    home.mkdir(parents=True)
    shutil.copy(DIGITS, home / "m.tflite")
    (home / part).write_bytes(b"x = 1\n")
    delegate = ""
    if part == "evil.so":
        delegate = 'delegate = "evil.so"\n'
    (home / "model.toml").write_text(f'[versions.v]\nfile = "m.tflite"\n{delegate}')
    entry = scan(tmp_path / "models")["own"]
    with pytest.raises(ModelLoadError) as refusal:
        TrustStore(state).check(entry, entry.versions["v"])
    assert command(*command_in(str(refusal.value)), "--yes")[0] == 0
    assert TrustStore(state).check(entry, entry.versions["v"])


@pytest.mark.parametrize("name", ["m", "it's", "a;b"])
def test_release_a_file_from_quarantine(
    tmp_path: Path, state: Path, command: Run, name: str
) -> None:
    (tmp_path / "models").mkdir()
    shutil.copy(DIGITS, tmp_path / "models" / f"{name}.tflite")
    entry = scan(tmp_path / "models")[name]
    version = entry.versions["tflite"]
    quarantine = Quarantine(state, TrialLimits())
    key = quarantine.key(entry, version)
    VerdictStore(state / "verdicts.json").save(
        key, Verdict(False, "it crashed its framework")
    )
    with pytest.raises(ModelLoadError) as refusal:
        quarantine.check(entry, version, ModelSource(version.path))
    words = command_in(str(refusal.value))
    assert command(*words, "--models-dir", tmp_path / "models")[0] == 0
    released = VerdictStore(state / "verdicts.json").get(key)
    assert released is None or released.ok


@pytest.mark.parametrize("name", ["digits", "it's"])
def test_remove_a_name_that_is_taken(
    tmp_path: Path, state: Path, command: Run, name: str
) -> None:
    add = ("add", DIGITS, "--name", name, "--models-dir", tmp_path / "models")
    assert command(*add)[0] == 0
    code, _, err = command(*add)
    assert code == 1
    assert (
        command(*command_in(err), "--models-dir", tmp_path / "models", "--yes")[0] == 0
    )
    assert command(*add)[0] == 0


def test_remove_the_only_version(tmp_path: Path, state: Path, command: Run) -> None:
    folder = ("--models-dir", tmp_path / "models")
    assert command("add", DIGITS, *folder)[0] == 0
    code, _, err = command(
        "remove",
        "digits",
        "--version",
        "tflite",
        "--yes",
        *folder,
    )
    assert code == 1
    assert command(*command_in(err), "--yes", *folder)[0] == 0
    assert not (tmp_path / "models" / "digits").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["trust", "--revoke", "digits"],
        ["trust", "--revoke", "no-such"],
    ],
)
def test_list_consents(state: Path, command: Run, words: list[str]) -> None:
    code, _, err = command(*words)
    assert code == 1
    code, out, _ = command(*command_in(err))
    assert code == 0
    assert "Only code of the embedded models is trusted" in out


def test_a_folder_of_versions_is_no_version(tmp_path: Path, state: Path) -> None:
    paths = make_models(tmp_path / "models")
    for folder, version in (
        (paths["bare folder"], "savedmodel"),
        (paths["numbered"].parent, None),
    ):
        service, name, named = open_local(str(folder), None)
        service.close()
        assert (name, named) == (folder.name, version)
