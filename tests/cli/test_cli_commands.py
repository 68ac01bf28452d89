"""Tests of every command except ``serve``, which tests/http covers."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS
from pocketserve import __version__
from pocketserve.child.memory import memory_of
from pocketserve.cli import COMMANDS, OTHER_NAMES, WAYS, main
from pocketserve.cli.commands.models import _load_each, _print_models
from pocketserve.cli.commands.predict import _print_answer
from pocketserve.cli.installed import LAB_COMMANDS
from pocketserve.messages import LOADS_ANEW, SERVES_ON
from pocketserve.terminal.local import open_local
from pocketserve.terminal.output import human_bytes
from pocketserve_client import ConnectionLostError
from pocketserve_lab.measurement import load_warning

ALL_COMMANDS = (*COMMANDS, *LAB_COMMANDS)
SEVEN = MODELS / "digits" / "samples" / "7.png"
FLOWER = ["5.1", "3.5", "1.4"]


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    """Hide the user's token and settings."""
    for name in [name for name in os.environ if name.startswith("POCKETSERVE_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture
def run(capsys):
    """Return a function that runs a command in this process.

    It expects success and returns the output.
    """

    def command(*words: object, code: int = 0) -> str:
        assert main([str(word) for word in words]) == code
        printed = capsys.readouterr()
        if code == 0:
            assert printed.err == ""
            return printed.out
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        assert line.startswith("pocketserve: ")
        assert "Traceback" not in line
        return line

    return command


@pytest.fixture
def connection(server) -> list[str]:
    return ["--url", server.url, "--token-file", str(server.log.with_name("token"))]


def process(*words: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    command = [sys.executable, "-m", "pocketserve", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=60, **options)


# --- Usage


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["predict"],
        ["predict", "petals"],
        ["predict", "petals", "1", "--top-k", "many"],
        ["predict", "petals", "1", "--unknown"],
        ["inspect"],
        ["models", "more"],
        ["serve", "one", "two"],
        ["token", "--token-file"],
    ],
)
def test_wrong_usage_exits_with_2(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "usage: pocketserve" in printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["serve", "--port", "8500"],
            "unrecognized arguments: --port (did you mean --http-port or --socket-port?)",
        ),
        (["serve", "--htp-port=3"], "--htp-port=3 (did you mean --http-port?)"),
        (
            ["serve", "--prot", "1"],
            "--prot (did you mean --http-port or --port-wait or --socket-port?); `pocketserve",
        ),
        (
            ["models", "--tok", "x"],
            "arguments: --tok x (did you mean --token-file?); `pocketserve models --help` lists",
        ),
        (
            ["--vers", "token"],
            "unrecognized arguments: --vers; `pocketserve token --help` lists its "
            "options\n",
        ),
        (
            ["serve", "--zzz"],
            "unrecognized arguments: --zzz; `pocketserve serve --help` lists its "
            "options\n",
        ),
        (
            ["stop", "digits"],
            "arguments: digits; it stops the whole server; idle models are unloaded automatically",
        ),
        (
            ["models", "digits"],
            "unrecognized arguments: digits; `pocketserve inspect MODEL` shows one model\n",
        ),
        (
            ["demo", "more"],
            "unrecognized arguments: more; `pocketserve demo --help` lists its "
            "options\n",
        ),
        (
            ["init", "x", "--pixels", "imagnet"],
            "'imagenet'); did you mean 'imagenet'?\n",
        ),
    ],
)
def test_options_cannot_be_abbreviated(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``serve --port 8500`` must not be parsed as ``--port-wait 8500``."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("modles", "models"),
        ("Serve", "serve"),
        ("verison", "version"),
        ("dowload", "download"),
        ("quake", None),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(
    word: str, meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word, "digits"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"there is no command {word!r}" in said
    assert said.endswith(
        f"; did you mean {meant!r}?\n"
        if meant
        else "; `pocketserve --help` lists the commands\n"
    )


@pytest.mark.parametrize("word", WAYS)
def test_commands_of_other_tools_get_a_suggestion(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every suggested command exists."""
    with pytest.raises(SystemExit) as ended:
        main([word])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.endswith(f"there is no command {word!r}; {WAYS[word]}\n")
    assert set(re.findall(r"`pocketserve (\w+)", said)) <= set(ALL_COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["version"],
        ["-v"],
        ["-V"],
        ["--version"],
    ],
)
def test_print_the_version(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pocketserve {__version__}\n"


def test_help_lists_commands_of_other_tools(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main([])
    text = " ".join(capsys.readouterr().out.split())
    assert "list, ls for models;" in text
    assert "pull, download for add;" in text
    assert all(word in text for word in OTHER_NAMES)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("list", "models"),
        ("ps", "status"),
        ("run", "predict"),
        ("help bench", "bench"),
    ],
)
def test_names_of_other_tools_run_the_command(
    words: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: pocketserve {command} ")


def test_an_invalid_setting_is_wrong_usage(run) -> None:
    assert "--http-port must be a whole number, not 'abc'" in run(
        "serve", "--http-port", "abc", code=2
    )


def test_help_of_serve_has_groups_units_and_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "addresses: --host TEXT Address to listen on; anything but loopback" in text
    assert (
        "--keep-alive SECONDS Idle time after which a model is unloaded; 0 keeps it loaded. [300]"
        in text
    )
    assert (
        "--max-body-bytes BYTES Size of a request body, before and after decompression. [64M]"
        in text
    )
    assert "--low-power auto|on|off " in text
    assert "VALUE" not in text


def test_common_options_may_precede_the_command(run, connection):
    """Other tools accept them there."""
    listed = run("models", "--json", *connection)
    assert (
        run("--json", *connection, "models")
        == run(*connection, "models", "--json")
        == listed
    )
    assert run(f"--url={connection[1]}", "models", "--json", *connection[2:]) == listed
    assert "cannot be reached" in run(
        "--url", "http://127.0.0.1:1", "predict", "petals", *FLOWER, code=1
    )
    with pytest.raises(SystemExit) as ended:
        main(["--url", "http://127.0.0.1:1", "token"])  # contacts no server
    assert ended.value.code == 2


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: pocketserve {command}" in capsys.readouterr().out


def test_help_and_version_print_their_subject(capsys):
    for words in (
        ["--help"],
        ["help"],
        [],
        ["--version"],
        ["-V"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ALL_COMMANDS)
    assert f"pocketserve {__version__}\n" in text


def test_the_process_exits_with_the_commands_code(tmp_path):
    failed = process("predict", "petals", "abc", "--local", text=True)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "pocketserve: 'abc' is neither a file nor a number\n"
    assert process("predict").returncode == 2
    shown = process(
        "predict",
        "petals",
        "abc",
        "--local",
        "--debug",
        text=True,
    )
    assert shown.returncode == 1
    assert shown.stderr.startswith("Traceback")


def test_a_closed_output_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "pocketserve", "token", "--path"]
        environment = {}
        for name, value in os.environ.items():
            if name != "PYTHONUNBUFFERED":
                environment[name] = value
        ended = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, timeout=60, env=environment
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_run_with_closed_standard_streams():
    command = f"exec {sys.executable} -m pocketserve token --path >&-"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")


# --- predict


def test_predict_a_picture(run, connection):
    text = run(
        "predict",
        "digits",
        SEVEN,
        "--top-k",
        2,
        *connection,
    )
    header, first, second, _, summary = text.splitlines()
    assert header.split() == ["LABEL", "SCORE"]
    assert first.split()[0] == "7"
    assert float(first.split()[1]) > float(second.split()[1])
    assert re.fullmatch(r"digits/tflite: [\d.]+ ms, of which model [\d.]+ ms", summary)


@pytest.mark.parametrize("local", [False, True])
def test_predict_draws_the_answer_on_a_picture(run, connection, tmp_path, local):
    where = connection
    if local:
        where = ["--local"]
    text = run(
        "predict",
        "digits",
        SEVEN,
        "--save",
        tmp_path / "seven.png",
        "--set",
        "language=de",
        *where,
    )
    assert text.startswith("LABEL")
    words = " ".join(text.split())
    assert words.endswith(
        f"The picture with the answer drawn on it is in {tmp_path / 'seven.png'}"
    )
    shown = json.loads(
        run(
            "predict",
            "digits",
            SEVEN,
            "--save",
            tmp_path / "seven.png",
            "--json",
            *where,
        )
    )
    assert shown["saved"] == str(tmp_path / "seven.png")
    assert (tmp_path / "seven.png").read_bytes().startswith(b"\x89PNG")
    assert "NAME=VALUE" in run(
        "predict", "digits", SEVEN, "--set", "language", *where, code=1
    )
    assert "no picture to draw on" in run(
        "predict", "petals", *FLOWER, "--save", tmp_path / "x.png", *where, code=1
    )


@pytest.mark.parametrize(
    "words",
    [
        FLOWER,
        [",".join(FLOWER)],
        ["5.1,", "3.5,", "1.4"],
        ["[5.1, 3.5, 1.4]"],
        ['{"sepal_length": 5.1, "sepal_width": 3.5, "petal_length": 1.4}'],
        ["[[5.1,", "3.5,", "1.4]]"],
    ],
)
def test_predict_numbers_in_every_form(run, connection, words):
    if words[0].startswith("[["):
        words = [" ".join(words)]
    header, row, *_ = run("predict", "petals", *words, *connection).splitlines()
    assert header.split() == ["NAME", "VALUE", "UNIT"]
    assert row.split() == ["petal_width", "0.2266", "cm"]


def test_predict_integers_and_negative_numbers(run, connection):
    answer = json.loads(
        run(
            "predict",
            "petals",
            "-1",
            "2",
            "-3.5",
            "--json",
            *connection,
        )
    )
    assert set(answer) == {"model", "version", "task", "predictions", "timing_ms"}


@pytest.mark.parametrize("name", ["numbers.json", "numbers.npy", "no-ending"])
def test_predict_files(run, connection, tmp_path, name):
    file = tmp_path / name
    if name.endswith(".npy"):
        np.save(file, np.array([[5.1, 3.5, 1.4]], np.float32))
    else:
        file.write_text("[5.1, 3.5, 1.4]")
    assert "0.2266" in run("predict", "petals", file, *connection)


def test_predict_standard_input(connection):
    ended = process(
        "predict", "digits", "-", "--json", *connection, input=SEVEN.read_bytes()
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["predictions"][0]["label"] == "7"


def test_predict_standard_input_in_this_process(run, connection, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[5.1, 3.5, 1.4]")))
    assert "0.2266" in run("predict", "petals", "-", *connection)


def test_predict_with_version_and_threshold(run, connection):
    chosen = ["--version", "tflite-int8", "--json"]
    assert (
        json.loads(run("predict", "digits", SEVEN, *chosen, *connection))["version"]
        == "tflite-int8"
    )
    assert "Nothing scores above the threshold." in run(
        "predict", "digits", SEVEN, "--threshold", 2, *connection
    )
    assert (
        len(
            json.loads(
                run(
                    "predict",
                    "digits",
                    SEVEN,
                    "--top-k",
                    3,
                    "--json",
                    *connection,
                )
            )["predictions"]
        )
        == 3
    )


def test_long_answers_are_cut_only_in_text_output(run, connection):
    rows = json.dumps([[5.1, 3.5, 1.4]] * 60)
    text = run("predict", "petals", rows, *connection)
    assert "… 10 more; --json prints all" in text
    assert (
        len(
            json.loads(run("predict", "petals", rows, "--json", *connection))[
                "predictions"
            ]
        )
        == 60
    )


@pytest.mark.parametrize(
    ("score", "advice"),
    [
        (8.1, True),
        (-0.2, True),
        (1.0005, False),
        (0.0, False),
    ],
)
def test_scores_that_are_not_probabilities(capsys, score, advice):
    """Logits come with advice on how to get probabilities.

    Other numbers and single scores don't.
    """
    answer = {
        "model": "m",
        "version": "v",
        "task": "text-classification",
        "timing_ms": {"infer": 1.0},
    }
    first = {
        "label": "a",
        "index": 0,
        "score": score,
    }
    second = {
        "label": "b",
        "index": 1,
        "score": 0.5,
    }
    _print_answer({**answer, "predictions": [first, second]})
    assert ('activation = "softmax"' in capsys.readouterr().out) is advice
    _print_answer({**answer, "predictions": [first]})
    assert "activation" not in capsys.readouterr().out
    _print_answer(
        {
            **answer,
            "task": "recommendation",
            "predictions": [{"label": "a", "index": 0, "score": 9.0}],
        }
    )
    assert "activation" not in capsys.readouterr().out


def test_a_named_folder_has_priority_over_the_working_directory(
    run, tmp_path, monkeypatch
):
    (tmp_path / "petals").mkdir()
    (tmp_path / "digits").write_text("notes")
    monkeypatch.chdir(tmp_path)
    assert "0.2266" in run(
        "predict", "petals", *FLOWER, "--local", "--models-dir", MODELS
    )
    assert "digits" in run("inspect", "digits", "--models-dir", MODELS)


def test_a_models_folder_with_two_dots_in_its_path(run, tmp_path, monkeypatch):
    """Labels and other files beside the model are found there, too."""
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    shutil.copy(MODELS / "digits" / "digits.tflite", folder)
    names = [f"digit {number}" for number in range(10)]
    (folder / "labels.txt").write_text("\n".join(names))
    (folder / "model.toml").write_text(
        'task = "image-classification"\n[image]\nmean = [0.0]\nstd = [255.0]\n'
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    seven = MODELS / "digits" / "samples" / "7.png"
    words = ["predict", "m", seven, "--local", "--models-dir", "../models"]
    assert "digit 7" in run(*words)


def test_predict_without_a_server(run, tmp_path):
    by_name = json.loads(run("predict", "digits", SEVEN, "--local", "--json"))
    assert by_name["predictions"][0]["label"] == "7"
    assert "0.2266" in run(
        "predict", "petals", *FLOWER, "--local", "--models-dir", MODELS
    )
    assert "0.2266" in run("predict", MODELS / "petals", *FLOWER, "--local")
    by_file = json.loads(
        run(
            "predict", MODELS / "petals" / "petals.tflite", *FLOWER, "--local", "--json"
        )
    )
    assert (by_file["model"], by_file["task"]) == ("petals", "tabular-regression")
    shutil.copy(MODELS / "petals" / "petals.tflite", tmp_path / "mine.tflite")
    bare = json.loads(
        run("predict", tmp_path / "mine.tflite", *FLOWER, "--local", "--json")
    )
    assert (bare["model"], bare["task"]) == ("mine", "tensors")
    assert bare["predictions"][0]["data"] == [pytest.approx(0.22656)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["petals", "abc"], "'abc' is neither a file nor a number"),
        (["petals", "1e400", "2", "3"], "'1e400' is too large for a number"),
        (["petals", "1", "2", "x"], "is neither a file nor a number"),
        (
            ["petals", "5,1", "3,5", "1,4"],
            "'5,1' is a decimal comma or two numbers: write 5.1 for the one, and 5 1 for",
        ),
        (["petals", "5,1 -3,5"], "'5,1' is a decimal comma or two numbers"),
        (
            ["petals", "1", "2"],
            "2 values do not make a whole row; the model takes 3: sepal_length",
        ),
        (["petals", "[1, 2"], "failed to parse the request JSON"),
        (["petals", SEVEN], "this model takes numbers"),
        (
            ["digits", MODELS / "digits" / "labels.txt"],
            "failed to parse the request JSON",
        ),
        (["digits", MODELS / "digits" / "README.md"], "not a picture"),
        (["nothing", "1"], "; there are '"),
        (["petals", *FLOWER, "--version", "9"], "version '9' is not found"),
        (["digits", SEVEN, "--top-k", "0"], "top_k must be a whole number from 1"),
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_bad_input_is_one_sentence(run, connection, words, reason, local):
    assert reason in run(
        "predict", *words, *(["--local"] if local else connection), code=1
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["predict", "{tmp}/none", "1", "--local"],
            "none' is not a file or folder; name a model file",
        ),
        (
            ["predict", "{tmp}/text.txt", "1", "--local"],
            "text.txt' is not a model file of a known kind",
        ),
        (["predict", "{tmp}/empty", "1", "--local"], "there is no model in the folder"),
        (["predict", "", "1", "--local"], "'' is not a file or folder"),
        (["predict", "petals", "", "--local"], "the input is empty"),
        (
            ["predict", "petals", "1", "--local", "--models-dir", "{tmp}/none"],
            "none cannot be read: No such file",
        ),
        (
            ["predict", "digits", SEVEN, "--local", "--save", "{tmp}/none/x.png"],
            "x.png' cannot be saved: No such file",
        ),
        (["inspect", "{tmp}/none"], "is not a file or folder"),
        (["bench", "{tmp}/text.txt"], "is not a model file of a known kind"),
        (
            ["simulate", "--folder", "{tmp}/text.txt", "--", "token"],
            "File exists (--debug",
        ),
    ],
)
def test_unusable_paths_are_explained(run, tmp_path, words, reason):
    """The error describes the path and suggests another, without Python's error names."""
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    said = run(*[str(word).replace("{tmp}", str(tmp_path)) for word in words], code=1)
    assert reason in said
    assert "Error" not in said


def test_predict_with_closed_standard_input(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert "standard input is closed" in run(
        "predict", "petals", "-", "--local", code=1
    )


@pytest.mark.parametrize("option", ["--rounds", "--seconds"])
def test_invalid_numbers_are_rejected(capsys, option):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "digits", option, "x"])
    assert ended.value.code == 2
    assert "must be a number, not 'x'" in capsys.readouterr().err


def test_an_unknown_name_says_how_to_list_names(run, connection):
    assert "did you mean 'petals'?" in run("predict", "petal", "1", *connection, code=1)
    assert re.search(
        r"there are .*'petals'", run("predict", "nothing", "1", *connection, code=1)
    )
    local = run("predict", "nothing", "1", "--local", code=1)
    assert re.search(r"no model 'nothing' in .*; there are '.*'$", local)


def test_a_path_needs_local(run, connection):
    assert "--local loads" in run(
        "predict", MODELS / "digits", SEVEN, *connection, code=1
    )


@pytest.fixture
def petals_copy(tmp_path):
    """Copy a model with units in its manifest.

    Its second version always loads.
    """
    folder = shutil.copytree(MODELS / "petals", tmp_path / "petals")
    shutil.copy(folder / "petals.tflite", folder / "second.tflite")
    with (folder / "model.toml").open("a") as manifest:
        manifest.write('\n[versions.second]\nfile = "second.tflite"\n')
    return folder


def test_a_file_is_opened_with_the_manifest_beside_it(run, petals_copy, monkeypatch):
    """The manifest gives task, names and version, for every spelling of the path."""
    whole = json.loads(
        run(
            "predict",
            petals_copy,
            *FLOWER,
            "--local",
            "--version",
            "second",
            "--json",
        )
    )
    monkeypatch.chdir(petals_copy)
    for path in (
        petals_copy / "second.tflite",
        "second.tflite",
        "../petals/second.tflite",
    ):
        answer = json.loads(run("predict", path, *FLOWER, "--local", "--json"))
        assert (answer["model"], answer["version"]) == ("petals", "second")
        assert answer["predictions"] == whole["predictions"]
        assert answer["predictions"][0]["name"] == "petal_width"
        shown = json.loads(run("inspect", path, "--json"))
        assert (shown["name"], shown["parameters"]["version"]) == ("petals", "second")
    # A folder that is a version.
    service, *named = open_local(str(petals_copy / "savedmodel"), None)
    service.close()
    assert named == ["petals", "savedmodel"]


def test_a_file_outside_the_manifest_is_opened_alone(petals_copy, capsys):
    shutil.copy(petals_copy / "second.tflite", petals_copy / "new.tflite")
    assert main(["inspect", str(petals_copy / "new.tflite"), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["name"] == "new"
    assert (
        printed.err
        == "pocketserve: new.tflite is opened by itself: model.toml beside it does not list it\n"
    )


def test_a_manifest_in_a_folder_whose_parent_cannot_be_listed(
    petals_copy, monkeypatch, capsys
):
    """In Android's shared storage, folders above it belong to the system."""
    listdir = os.listdir

    def refused(path="."):
        if path == petals_copy.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refused)
    assert main(["inspect", str(petals_copy / "petals.tflite"), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["name"] == "petals"
    assert printed.err.startswith(
        "pocketserve: petals.tflite is opened by itself: the models folder "
    )


def test_a_broken_manifest_beside_a_file_is_reported(run, petals_copy):
    (petals_copy / "model.toml").write_text("taks = 1\n")
    told = run("predict", petals_copy / "second.tflite", *FLOWER, "--local", code=1)
    assert "petals/model.toml: unknown key taks; did you mean 'task'?" in told


def test_a_file_is_not_confused_with_a_folder_of_its_name(run, petals_copy, tmp_path):
    bare = petals_copy.parent / "petals.tflite"
    shutil.copy(MODELS / "digits" / "digits.tflite", bare)
    for command in (["inspect", bare], ["predict", bare, *FLOWER, "--local"]):
        assert (
            f"'{bare}' is beside a folder 'petals', which is the model of that name; rename"
            in run(*command, code=1)
        )


def test_folders_with_invalid_model_names(run, petals_copy, tmp_path):
    odd = tmp_path / "my petals"
    petals_copy.rename(odd)
    assert "a model cannot be called 'my petals': its name has no spaces" in run(
        "inspect", odd, code=1
    )
    shutil.copy(odd / "second.tflite", tmp_path / "a b.tflite")
    assert "a model cannot be called 'a b'" in run(
        "predict", tmp_path / "a b.tflite", *FLOWER, "--local", code=1
    )
    inside = tmp_path / "Größe und Maß"
    inside.mkdir()
    odd.rename(inside / "petals")
    assert "0.2266" in run("predict", inside / "petals", *FLOWER, "--local")
    assert "0.2266" in run(
        "predict", inside / "petals" / "second.tflite", *FLOWER, "--local"
    )


def test_a_damaged_file_is_found_by_a_check(run, new_server, tmp_path, capsys):
    """A list reads only names and first bytes.

    A truncated file fails when it is loaded.
    """
    models = tmp_path / "models"
    models.mkdir()
    whole = (MODELS / "petals" / "petals.tflite").read_bytes()
    (models / "good.tflite").write_bytes(whole)
    (models / "short.tflite").write_bytes(whole[: len(whole) // 2])
    server = new_server(models)
    connection = ["--url", server.url, "--token-file", server.log.with_name("token")]
    assert main(["models", "--check", "--json", *map(str, connection)]) == 0
    printed = capsys.readouterr()
    assert printed.err == "loading good/tflite …\nloading short/tflite …\n"
    told = json.loads(printed.out)
    assert {entry["name"]: entry["state"] for entry in told} == {
        "good": "READY",
        "short": "UNAVAILABLE",
    }
    assert "failed to load 'short'" in told[1]["reason"]
    assert json.loads(run("models", "--json", *connection)) == told


def test_a_check_ends_with_the_server():
    """Otherwise every further call would search for it for seconds."""
    asked = []

    class Gone:
        def model_metadata(self, name, version):
            asked.append((name, version))
            raise ConnectionLostError("the connection broke")

    entries = [
        {
            "name": name,
            "version": "1",
            "state": "READY",
        }
        for name in "abc"
    ]
    with pytest.raises(ConnectionLostError):
        _load_each(Gone(), entries)
    assert asked == [("a", "1")]


def test_too_few_labels_are_reported(run, tmp_path):
    shutil.copytree(MODELS / "digits", tmp_path / "digits")
    (tmp_path / "digits/labels.txt").write_text("zero\none\n")
    told = "the model has 2 labels for 10 classes, so that names are missing or stand for other classes"
    assert told in run("inspect", tmp_path / "digits")


def test_entries_without_a_label_show_their_number(run):
    query = (
        '{"query": "switch the lamp on", "texts": ["play a song", "turn on the light"]}'
    )
    header, first, *_ = run(
        "predict", MODELS.parent / "tests" / "models" / "phrases", query, "--local"
    ).splitlines()
    assert header.split() == ["INDEX", "SCORE"]
    assert first.split()[0] == "1"


def test_a_failed_load_is_reported_once(tmp_path):
    (tmp_path / "model.toml").write_text(
        'task = "image-classification"\nlabels = "missing.txt"\n'
    )
    shutil.copy(MODELS / "digits" / "digits.tflite", tmp_path)
    told = process("predict", tmp_path, SEVEN, "--local").stderr.decode()
    assert told.count("failed to load") == 1
    assert "missing.txt" in told


def test_an_empty_input_is_one_sentence(run, connection, tmp_path):
    (tmp_path / "empty").touch()
    assert "empty" in run("predict", "digits", tmp_path / "empty", *connection, code=1)


@pytest.mark.parametrize(
    "command",
    [
        ["models"],
        ["predict", "petals", "1"],
        ["inspect", "petals"],
    ],
)
def test_a_missing_server_is_one_sentence(run, command):
    line = run(*command, "--url", "http://127.0.0.1:1", code=1)
    assert "http://127.0.0.1:1 cannot be reached (Connection refused)" in line
    assert "pocketserve serve" in line


def test_a_missing_token_is_one_sentence(run, server, tmp_path):
    line = run(
        "models",
        "--url",
        server.url,
        "--token-file",
        tmp_path / "none",
        code=1,
    )
    assert line.endswith("none cannot be read: No such file or directory")
    (tmp_path / "other").write_text("x" * 43)
    line = run(
        "models", "--url", server.url, "--token-file", tmp_path / "other", code=1
    )
    assert "a valid token is required" in line
    assert "pocketserve token" in line
    assert "--token-file" in line
    assert f"the token comes from {tmp_path / 'other'} (token_file)" in line
    assert "Client(" not in line


@pytest.mark.parametrize("protocol", ["http", "socket"])
def test_a_wrong_token_file_is_named(run, server, tmp_path, monkeypatch, protocol):
    url = (
        server.url if protocol == "http" else f"socket://127.0.0.1:{server.socket_port}"
    )
    text = tmp_path / "README.md"
    for content in (b"# Two words\n", b"", b"\xff\n", b"x" * 2000):
        text.write_bytes(content)
        assert f"{text} contains no token" in run(
            "models", "--url", url, "--token-file", text, code=1
        )
    monkeypatch.setenv("POCKETSERVE_TOKEN_FILE", str(tmp_path / "none"))
    line = run("models", "--url", url, code=1)
    assert "none cannot be read: No such file" in line
    assert line.endswith("POCKETSERVE_TOKEN_FILE names it")
    right = server.log.with_name("token")
    # Which comes before the variable.
    assert "petals" in run("models", "--url", url, "--token-file", right)


# --- models


def test_models_are_listed(run, connection):
    header, *rows = run("models", "--all", *connection).splitlines()
    assert header.split() == ["MODEL", "VERSION", "STATE", "NOTE"]
    assert ["digits", "tflite-int8", "READY"] in [row.split()[:3] for row in rows]
    entries = json.loads(run("models", "--json", *connection))
    assert {(one["name"], one["version"]) for one in entries} >= {
        ("digits", "tflite"),
        ("petals", "keras"),
    }


def test_models_are_grouped(run, connection):
    printed = run("models", *connection)
    table, *reasons = printed.split("\n\n")
    header, *rows = table.splitlines()
    assert header.split() == ["MODEL", "DEFAULT", "VERSIONS", "STATE", "SIZE", "TASK"]
    assert [row.split()[:2] for row in rows] == [
        [name, "tflite"] for name in ("diabetes", "digits", "numbers", "petals")
    ]
    assert rows[1].split()[-1] == "image-classification"
    size = human_bytes((MODELS / "digits/digits.tflite").stat().st_size)
    assert f"  {size}  " in rows[1]
    entries = json.loads(run("models", "--json", *connection))
    failed = [entry for entry in entries if entry["state"] != "READY"]
    counts = [
        line.split()[0]
        for text in reasons
        for line in text.splitlines()
        if line[:4].strip().isdigit()
    ]
    assert sum(map(int, counts)) == len(failed)
    # PyTorch, ExecuTorch, TensorFlow, TensorFlow.js, and a missing ONNX.
    assert len(counts) <= 5
    assert bool(failed) is ("models --all" in "".join(reasons))


def test_a_list_shows_loaded_models(run, new_server, models_copy):
    server = new_server(models_copy)
    connection = ["--url", server.url, "--token-file", server.log.with_name("token")]
    run(
        "predict",
        "petals",
        "5.1",
        "3.5",
        "1.4",
        *connection,
    )
    states = {
        row.split()[0]: row.split()
        for row in run("models", *connection).split("\n\n")[0].splitlines()
    }
    assert "loaded" in states["petals"]
    assert "ready" in states["digits"]
    entries = json.loads(run("models", "--json", *connection))
    assert [(one["name"], one["version"]) for one in entries if one["loaded"]] == [
        ("petals", "tflite")
    ]
    assert [one["version"] for one in entries if one["default"]] == ["tflite"] * 3


@pytest.mark.parametrize("columns", [45, 100])
def test_a_list_fits_the_terminal(capsys, monkeypatch, columns):
    """Models and missing frameworks have one line each, without broken words."""
    monkeypatch.setenv("COLUMNS", str(columns))
    facts = {
        "default": True,
        "file_bytes": 107_200,
        "task": "image-classification",
    }
    entries = [
        {
            "name": name,
            "version": "tflite",
            "state": "READY",
            **facts,
        }
        for name in ("digits", "diabetes")
    ]
    for kind, extra in (
        ("torch", "torch"),
        ("pt2", "torch"),
        ("keras", "tensorflow"),
    ):
        reason = (
            f"no framework for {kind} models is installed: pip install "
            f"'pocketserve[{extra}]'; in Termux: pkg install x"
        )
        entries.append(
            {
                "name": "digits",
                "version": kind,
                "state": "UNAVAILABLE",
                "reason": reason,
            }
        )
    _print_models(entries)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert max(map(len, lines)) <= columns
    assert "   2  pip install 'pocketserve[torch]'" in lines
    assert "   1  pip install 'pocketserve[tensorflow]'" in lines
    assert [line.split()[0] for line in lines[:3]] == ["MODEL", "digits", "diabetes"]
    assert ("image-classification" in printed) is (columns == 100)
    assert lines[0].index("SIZE") + 4 == lines[1].index("kB") + 2


def test_an_unserved_change_is_reported_once_per_model(capsys):
    reason = "is still served as it was loaded: digits/model.toml: unknown key top_k"
    entry = {
        "name": "digits",
        "version": "tflite",
        "state": "READY",
        "reason": reason,
    }
    _print_models(
        [
            entry,
            {**entry, "version": "onnx"},
            {**entry, "name": "other", "reason": "loads on first use"},
        ]
    )
    assert capsys.readouterr().out.splitlines()[3:] == [f"WARNING: digits {reason}"]


def test_a_pending_version_is_named(capsys):
    reason = "pending: it is being loaded; version 1 is the default version until then"
    entry = {
        "name": "digits",
        "version": "2",
        "state": "READY",
        "reason": reason,
    }
    _print_models([{**entry, "version": "1", "reason": "", "default": True}, entry])
    assert f"note: digits version 2 is {reason}" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_change_that_is_loading_is_no_warning(capsys):
    entry = {
        "name": "digits",
        "version": "tflite",
        "state": "READY",
        "reason": f"{SERVES_ON}{LOADS_ANEW}",
    }
    _print_models([entry])
    assert " ".join(capsys.readouterr().out.split()).endswith(
        f"note: digits {SERVES_ON}{LOADS_ANEW}"
    )


def test_reasons_are_counted(capsys):
    broken = [
        {
            "name": f"m{n}",
            "version": "",
            "state": "UNAVAILABLE",
            "reason": "no file",
        }
        for n in range(6)
    ]
    _print_models([*broken, {"name": "good", "version": "tflite", "state": "READY"}])
    printed = capsys.readouterr().out
    assert "  m0, m1, m2, m3 and 2 more: no file\n" in printed
    assert [
        line.split() for line in printed.splitlines() if line.startswith("good")
    ] == [["good", "tflite", *["1", "ready", "-", "-"]]]


def test_a_file_is_shown_with_an_example_request(run, tmp_path):
    file = tmp_path / "my models" / "flowers.tflite"
    file.parent.mkdir()
    shutil.copy(MODELS / "petals" / "petals.tflite", file)
    printed = run("inspect", file, "--version", "tflite")
    assert (
        f"pocketserve predict --local '{file}' --version tflite input.json" in printed
    )
    assert "http://" not in printed


@pytest.mark.parametrize(
    "flower",
    [
        ["5.1", "3.5"],
        ["[[5.1, 3.5]]"],
    ],
    ids=["flat", "row"],
)
def test_missing_features_are_named(run, flower):
    said = run("predict", "--local", MODELS / "petals", *flower, code=1)
    assert said.endswith("the model takes 3: sepal_length, sepal_width, petal_length")


def test_an_empty_folder_explains_the_next_step(run, new_server, tmp_path):
    folder = tmp_path / "nothing"
    folder.mkdir()
    server = new_server(folder)
    options = ["--url", server.url, "--token-file", server.log.with_name("token")]
    assert run("models", *options).startswith(
        "The models folder is empty. Put a model file into it"
    )
    assert json.loads(run("models", "--json", *options)) == []


# --- inspect


@pytest.mark.parametrize("how", ["server", "local", "folder"])
def test_inspect_describes_a_model_the_same_from_everywhere(run, connection, how):
    model = "digits"
    if how == "folder":
        model = MODELS / "digits"
    options = {
        "server": connection,
        "local": ["--local"],
        "folder": [],
    }[how]
    described = json.loads(run("inspect", model, "--json", *options))
    assert described["name"] == "digits"
    assert described["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 8, 8, 1]}
    ]
    assert described["parameters"]["version"] == "tflite"
    text = run("inspect", model, *options)
    assert re.search(r"^input +image +FP32 +\[any, 8, 8, 1\]$", text, re.MULTILINE)
    assert re.search(r"^file size +107\.2 kB$", text, re.MULTILINE)


def test_inspect_a_version(run, connection):
    for options in (["--local"], connection):
        described = json.loads(
            run(
                "inspect",
                "digits",
                "--version",
                "tflite-int8",
                "--json",
                *options,
            )
        )
        assert described["parameters"]["file"] == "digits.int8.tflite"


def test_inspect_a_file(run, tmp_path):
    described = json.loads(
        run("inspect", MODELS / "digits" / "digits.int8.tflite", "--json")
    )
    assert described["parameters"]["file"] == "digits.int8.tflite"
    int8 = MODELS.parent / "tests" / "runtimes" / "data" / "int8_io.tflite"
    assert re.search(
        r"^input +\S+ +INT8 +\[any, 3\] +0\.00777\d+ \* \(q - 0\)$",
        run("inspect", int8),
        re.MULTILINE,
    )


def test_tensors_on_a_narrow_terminal(run, monkeypatch):
    """Long facts move below the tensor's name, and empty columns are left out."""
    int8 = MODELS.parent / "tests" / "runtimes" / "data" / "int8_io.tflite"
    monkeypatch.setenv("COLUMNS", "45")
    shown = run("inspect", int8)
    assert max(map(len, shown.partition("shell:")[0].splitlines())) <= 45
    name = r"^input   \S+\n        INT8  \[any, 3\]\n        0\.00777\d+ \* \(q - 0\)$"
    assert re.search(name, shown, re.MULTILINE)
    assert "QUANTIZATION" not in shown
    assert "\ninput.json holds:\n  [[0, 0, 0]]\n" in shown
    assert "        NAME    DATATYPE  SHAPE\n" in run(
        "inspect", MODELS / "digits" / "digits.tflite"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["{tmp}/broken.tflite"], "broken.tflite is not a TFLite model"),
        (["{tmp}/missing.tflite", "--local"], "is not a file or folder"),
        (["nothing", "--local"], "there is no model 'nothing' in "),
        (["digits", "--local", "--models-dir", "{tmp}/nowhere"], "nowhere"),
        (["digits", "--local", "--version", "9"], "version '9' is not found"),
    ],
)
def test_inspect_fails_with_one_sentence(run, tmp_path, words, reason):
    (tmp_path / "broken.tflite").write_bytes(b"garbage" * 20)
    assert reason in run(
        "inspect", *[word.replace("{tmp}", str(tmp_path)) for word in words], code=1
    )


# --- token


def test_the_token_is_created_once(run, tmp_path):
    token = run("token").strip()
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)
    assert run("token").strip() == token
    path = Path(run("token", "--path").strip())
    assert path.is_relative_to(tmp_path / "home")
    assert path.read_text().strip() == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(run("token", "--json")) == {
        "token": token,
        "token_file": str(path),
    }


def test_the_token_file_is_an_option(run, server, tmp_path):
    file = server.log.with_name("token")
    assert run("token", "--token-file", file).strip() == server.token
    file = tmp_path / "deep" / "er" / "token"
    assert json.loads(run("token", "--token-file", file, "--json"))[
        "token_file"
    ] == str(file)
    file.chmod(0o644)
    assert "chmod 600" in run("token", "--token-file", file, code=1)


# --- demo


def test_the_demo_reads_ten_digits():
    ended = process("demo", text=True)
    assert ended.returncode == 0, ended.stderr
    for transport in ("HTTP", "the socket"):
        assert f"10 of 10 digits read correctly over {transport}" in ended.stdout
    assert "petal width 0.23 cm" in ended.stdout
    assert "numbers: note.jpg shows " in ended.stdout
    (drawn,) = re.findall(r"boxes drawn is in (.*)", ended.stdout)
    assert Path(drawn).read_bytes().startswith(b"\x89PNG")
    shutil.rmtree(Path(drawn).parent)
    assert "shows a" not in ended.stdout
    assert "no engine for language models is installed" in ended.stdout


# --- bench


@pytest.mark.live
def test_bench_measures_each_kind_of_request(run):
    found = json.loads(run("bench", "petals", "--rounds", "3", "--json"))
    assert set(found["latency_ms"]) == {"in_process", "socket", "http"}
    assert all(
        len(way["samples"]) == 3 and way["p50"] <= way["p99"]
        for way in found["latency_ms"].values()
    )
    assert found["inputs"] == [{"name": "features", "shape": [1, 3]}]
    assert found["version"] == "tflite"
    assert found["runtime"]
    assert found["threads"] >= 1
    assert found["first_answer_ms"] > 0
    assert found["warm_up"] == 3


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc"
)
def test_bench_counts_the_servers_child_processes(tmp_path):
    """Such as the Node process of TensorFlow.js."""
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(16 << 20))
    child = "import mmap, sys; kept = bytearray(b'1') * (32 << 20); file = open(sys.argv[1], 'rb'); "
    child += "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ); mapped.rfind(b'x'); "
    child += "print(flush=True); sys.stdin.read()"
    code = "import subprocess, sys; print('alone', flush=True); sys.stdin.readline(); "
    code += f"subprocess.run([sys.executable, '-c', {child!r}, {str(weights)!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        alone = memory_of(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        both = memory_of(process.pid)
    grown = {kind: both[kind] - alone[kind] for kind in both}
    # No other process has mapped the file.
    assert grown["resident"] > 48 << 20 and grown["private"] > 48 << 20
    assert 32 << 20 < grown["anonymous"] <= grown["resident"] - (16 << 20)
    assert memory_of(process.pid) is None


@pytest.mark.live
def test_bench_prints_a_table(run):
    printed = run("bench", MODELS / "digits" / "digits.tflite", "--rounds", "1")
    assert "over the socket" in printed
    assert "over HTTP" in printed


def test_bench_warns_about_other_load():
    cores = os.cpu_count() or 1
    assert load_warning(None) == ""
    assert load_warning(0.4 * cores) == ""
    assert f"load was {2.0 * cores:.1f} on {cores} core" in load_warning(2.0 * cores)


def test_bench_rejects_ineffective_options(run):
    assert "--tune" in run("bench", "digits", "--force", code=1)


def test_bench_names_an_unknown_model(run):
    assert "nothing" in run("bench", "nothing", code=1)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "long"])
def test_bench_accepts_a_duration(capsys, seconds):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "digits", "--tune", "--seconds", seconds])
    assert ended.value.code == 2
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", ["0", "-1", "many"])
def test_bench_accepts_a_number_of_rounds(capsys, rounds):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "digits", "--rounds", rounds])
    assert ended.value.code == 2
