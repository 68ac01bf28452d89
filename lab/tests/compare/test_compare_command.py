"""Run ``pocketserve compare`` on the embedded models with the installed frameworks."""

from __future__ import annotations

import copy
import csv
import functools
import html.parser
import json
import operator
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import PIL.Image
import pytest

from conftest import MODELS, STATE
from pocketserve.cli import main
from pocketserve.repository.manifest import read_manifest
from pocketserve_lab.compare.session import VersionFailure, VersionProcess

pytestmark = pytest.mark.live
TIMEOUT_S = 900
"""With every framework there are eleven versions, each of which imports its own twice.
"""
QUICK = ("--seconds", "0.5")
VERSIONS = ("--versions", "tflite,tflite-int8")


def compare(*words: object, fails: bool = False) -> str:
    """Run the command; return its output, or stderr if it fails."""
    command = [sys.executable, "-m", "pocketserve", "compare", *map(str, words)]
    surroundings = {
        **os.environ,
        "POCKETSERVE_STATE_DIR": str(STATE),
        "POCKETSERVE_MODELS_DIR": str(MODELS),
        "COLUMNS": "200",
    }
    done = subprocess.run(
        command, env=surroundings, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == int(fails), done.stdout + done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """Return the comparison of all versions of digits that run here."""
    document: dict[str, Any] = json.loads(compare("digits", "--json", *QUICK))
    return document


def test_every_version_is_compared_or_explained(
    result: dict[str, Any],
) -> None:
    """Together they are the manifest's versions."""
    assert {*result["versions"], *result["skipped"]} == set(
        read_manifest(MODELS / "digits" / "model.toml").versions
    )
    assert {"tflite", "tflite-int8"} <= set(result["versions"])
    assert all(result["skipped"].values())


def check_times(facts: dict[str, Any], kind: str) -> None:
    """Check that percentiles are ordered, in their intervals and from the samples."""
    shares = facts[kind]
    for share in shares.values():
        if share["low"] is not None:  # six turns and more have an interval
            assert share["low"] <= share["value"] <= share["high"]
    median = shares["p50"]["value"]
    assert 0 < median <= shares["p90"]["value"] <= shares["p99"]["value"]
    values = sorted(value for turn in facts["samples"][kind] for value in turn)
    assert values[0] <= median <= values[-1]


def test_the_figures_are_consistent(result: dict[str, Any]) -> None:
    """Each is within its interval and follows from the complete samples."""
    versions = result["versions"]
    assert result["data"]["labelled"] == 10
    assert result["reference"] == "tflite"
    for name, facts in versions.items():
        check_times(facts, "run_ms")
        check_times(facts, "answer_ms")
        run = facts["run_ms"]["p50"]["value"]
        answer = facts["answer_ms"]["p50"]["value"]
        assert run < answer  # an answer includes decoding
        assert facts["cpu_s"] > 0
        assert facts["load_ms"] > 0
        assert facts["throughput"]["answers_per_s"] > 0
        assert facts["memory_bytes"]["private"] > 0
        assert facts["memory_bytes"]["peak"] > 0
        assert facts["accuracy"]["value"] == 1.0, name
        assert facts["agreement"]["share"]["value"] == 1.0, name
    digits = MODELS / "digits" / "digits.tflite"
    assert versions["tflite"]["file_bytes"] == digits.stat().st_size
    assert versions["tflite-int8"]["agreement"]["largest_difference"] > 0
    assert result["recommendation"]["version"] in versions


def test_the_table_the_page_and_the_picture_are_complete(tmp_path: Path) -> None:
    """The page contains the whole result and needs no other file."""
    page = tmp_path / "page.html"
    picture = tmp_path / "picture.png"
    printed = compare("digits", *VERSIONS, *QUICK, "--html", page, "--png", picture)
    assert re.search(r"^tflite( \*)? +107\.2 kB", printed, re.MULTILINE)
    assert re.search(r"^tflite-int8( \*)? +33\.8 kB", printed, re.MULTILINE)
    assert "Rule: the fastest version" in printed
    text = page.read_text()
    html.parser.HTMLParser().feed(text)
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "url(" not in text
    inside = re.search(
        r'<script type="application/json" id="result">(.*?)</script>', text, re.DOTALL
    )
    assert inside is not None
    document = json.loads(inside[1])
    assert set(document["versions"]) == {"tflite", "tflite-int8"}
    with PIL.Image.open(picture) as image:
        assert image.width == 600
        assert len(image.getcolors(1 << 20) or ()) > 4


def check_no_local_path(files: Sequence[Path], folder: Path) -> None:
    """Check that no file names a folder of this machine."""
    for file in files:
        content = file.read_bytes()
        for local in (MODELS, folder, Path.home()):
            assert str(local).encode() not in content


def test_a_report_has_all_that_a_paper_cites(tmp_path: Path) -> None:
    """Numbers, tables, figures, samples and methods, without a local path."""
    folder = tmp_path / "report"
    page = tmp_path / "page.html"
    options = ("--report", folder, "--repeat", "2", "--margin", "1%", "--html", page)
    printed = compare("digits", *VERSIONS, *QUICK, *options)
    assert "Spread over 2 runs:" in printed
    assert "2 runs recommend" in " ".join(printed.split())
    names = {file.name for file in folder.iterdir()}
    assert names == REPORT_FILES
    result = json.loads((folder / "result.json").read_text())
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [row["version"] for row in rows] == ["tflite", "tflite-int8"]
    for row in rows:
        run = result["versions"][row["version"]]["run_ms"]["p50"]
        assert float(row["run_p50_ms"]) == run["value"]
    samples = list(csv.DictReader((folder / "samples.csv").read_text().splitlines()))
    assert {row["repeat"] for row in samples} == {"1", "2"}
    ElementTree.parse(folder / "figure.svg")
    methods = (folder / "methods.md").read_text()
    assert "The margin was 1.00%" in methods
    turns = result["recommendation"]["turns"]
    assert turns >= 6
    assert f"this gave {turns} turns" in methods
    check_no_local_path([*folder.iterdir(), page], tmp_path)
    refused = compare("digits", *VERSIONS, *QUICK, "--report", folder, fails=True)
    assert "is not empty; name a new folder with --report" in refused


REPORT_FILES = {
    "table.csv",
    "table.md",
    "table.tex",
    "samples.csv",
    "result.json",
    "environment.json",
    "figure.svg",
    "figure.png",
    "methods.md",
}


def test_a_table_of_numbers_is_compared(tmp_path: Path) -> None:
    """Regression errors need a CSV file; random numbers show agreement and speed only."""
    table = tmp_path / "flowers.csv"
    lines = ["5.1,3.5,1.4,0.2", "4.9,3.0,1.4,0.2", "7.0,3.2,4.7,1.4", "6.3,3.3,6.0,2.5"]
    names = read_manifest(MODELS / "petals" / "model.toml").feature_names
    table.write_text("\n".join([",".join((*names, "value")), *lines]))
    result = json.loads(
        compare("petals", "--versions", "tflite", "--data", table, "--json", *QUICK)
    )
    accuracy = result["versions"]["tflite"]["accuracy"]
    assert accuracy["metric"] == "mean absolute error"
    assert accuracy["samples"] == 4
    assert 0 < accuracy["value"] < 0.4
    without_samples = shutil.ignore_patterns("samples")
    models = tmp_path / "models"
    shutil.copytree(MODELS / "petals", models / "petals", ignore=without_samples)
    words = ("petals", "--versions", "tflite", "--json", "--models-dir", models, *QUICK)
    result = json.loads(compare(*words))
    assert result["data"]["origin"] == "random numbers"
    assert result["versions"]["tflite"]["accuracy"] is None


def test_an_unreadable_sample_is_excluded(tmp_path: Path) -> None:
    """If all pictures are broken, the command fails with the reason."""
    shutil.copytree(MODELS / "digits" / "samples", tmp_path / "data")
    (tmp_path / "data" / "3.png").write_bytes(b"no picture")
    result = json.loads(
        compare("digits", *VERSIONS, *QUICK, "--data", tmp_path / "data", "--json")
    )
    assert {facts["accuracy"]["samples"] for facts in result["versions"].values()} == {
        9
    }
    for path in (tmp_path / "data").iterdir():
        path.write_bytes(b"no picture")
    printed = compare(
        "digits", *VERSIONS, *QUICK, "--data", tmp_path / "data", fails=True
    )
    assert (
        "reference version 'tflite' failed: it answers none of the samples: " in printed
    )


def test_apply_sets_the_default_version(tmp_path: Path) -> None:
    """Comments in the manifest are kept, and a second call changes nothing."""
    shutil.copytree(MODELS / "digits", tmp_path / "digits")
    manifest = tmp_path / "digits" / "model.toml"
    text = manifest.read_text()
    manifest.write_text(
        "# mine\n"
        + text.replace(
            'default_version = "tflite"', 'default_version = "tflite-int8"  # May'
        )
    )
    options = ("digits", "--models-dir", tmp_path, *QUICK, "--apply", "--versions")
    refused = compare(*options, "tflite", fails=True)
    assert (
        "tflite was not compared with tflite-int8, the default version; add it to --versions"
        in refused
    )
    (tmp_path / "digits" / "digits.int8.tflite").write_bytes(b"no model")
    assert "default_version is tflite now" in compare(*options, "tflite,tflite-int8")
    assert manifest.read_text() == "# mine\n" + text.replace(
        'version = "tflite"\n', 'version = "tflite"  # May\n'
    )
    assert "tflite is the default version already" in compare(*options, "tflite")


def test_a_bare_file_has_no_manifest_to_edit(tmp_path: Path) -> None:
    """The message names the remedy; two bare files of one name are two versions."""
    for suffix in ("tflite", "onnx"):
        shutil.copy(MODELS / "petals" / f"petals.{suffix}", tmp_path)
    manifest = compare(
        "petals", "--models-dir", tmp_path, "--versions", "tflite", *QUICK, "--apply"
    )
    assert "tflite is the default version already" in manifest


def test_results_of_two_devices_are_combined(
    result: dict[str, Any], tmp_path: Path
) -> None:
    """Both have times, memory and recommendations; versions of one device only are
    marked.
    """
    other = copy.deepcopy(result)
    other["device"]["machine"] = "aarch64"
    other["recommendation"]["version"] = "tflite"
    for facts in other["versions"].values():
        facts["run_ms"]["p50"] = {
            key: value and 3 * value for key, value in facts["run_ms"]["p50"].items()
        }
    other["skipped"]["tflite-int8"] = "no"
    del other["versions"]["tflite-int8"]
    files = [tmp_path / "desk.json", tmp_path / "phone.json"]
    for file, document in zip(files, (result, other), strict=True):
        file.write_text(json.dumps(document))
    printed = compare(*files)
    assert "phone.json: aarch64" in printed
    assert re.search(r"^tflite .* 3\.00 ", printed, re.MULTILINE)
    assert re.search(r"^tflite-int8 .* not run ", printed, re.MULTILINE)
    both = json.loads(compare(*files, "--json"))
    assert both["versions"]["tflite-int8"][1] == {"skipped": "no"}
    assert both["same_data"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nothing",), "no model .nothing. in .*; there are"),
        (
            ("digits", "--versions", "tflit"),
            "no version 'tflit'; it has tflite.*did you mean 'tflite'",
        ),
        (
            ("digits", "--reference", "tfjs", "--versions", "tflite"),
            "reference version 'tfjs' is not compared",
        ),
        (("digits", "--data", "/nowhere"), "does not exist; name a file or folder"),
        (("digits", "petals"), "name one model, or two JSON files"),
        (("a.json", "b.json"), "No such file"),
        (("digits", "--html", "/nowhere/x.html"), "folder that does not exist"),
        (("digits", "--report", "/nowhere/x"), "folder that does not exist"),
        (("digits", "--layers", "tflite", "onnx", "--repeat", "2"), "whole versions"),
    ],
    ids=[
        "model",
        "version",
        "reference",
        "data",
        "two models",
        "no results",
        "folder",
        "report's folder",
        "layers",
    ],
)
def test_bad_input_is_explained_in_one_sentence(
    words: tuple[str, ...], reason: str
) -> None:
    """It names the way out."""
    printed = compare(*words, *(() if "a.json" in words else QUICK), fails=True)
    lines = [line for line in printed.splitlines() if not line.endswith("…")]
    assert len(lines) == 1 and re.search(reason, lines[0]), printed


@pytest.mark.parametrize("command", ["compare", "bench"])
def test_the_number_of_threads_is_validated(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative numbers are refused."""
    with pytest.raises(SystemExit):
        main([command, "digits", "--threads", "-3"])
    assert "--threads: must be between 0 and 256" in capsys.readouterr().err


def test_a_file_that_is_not_a_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    assert "is not a result of" in compare(
        tmp_path / "a.json", tmp_path / "a.json", fails=True
    )


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a document, except the raw samples."""
    if path and path[-1] != "samples":
        yield path
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        if key != "samples":
            yield from leaves(value, (*path, key))


DAMAGES = (None, "x", [], {}, -1, 0, float("nan"), 10**400, ...)
"""Values to put in place of one in a result; the ellipsis removes it."""


def damaged(document: Any, path: Sequence[Any], value: Any) -> Any:
    """Return a copy of a document with one value replaced or removed."""
    changed = copy.deepcopy(document)
    holder = functools.reduce(operator.getitem, path[:-1], changed)
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return changed


def test_a_damaged_result_is_shown_or_refused_in_one_sentence(
    result: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each value is changed or removed once."""
    whole = str(tmp_path / "whole.json")
    changed = str(tmp_path / "changed.json")
    versions = {name: result["versions"][name] for name in ("tflite", "tflite-int8")}
    recommendation = {**result["recommendation"], "version": "tflite"}
    small = {**result, "versions": versions, "recommendation": recommendation}
    Path(whole).write_text(json.dumps(small))
    refusal = "changed.json' (was|is) .*compare|different models"
    refusals = 0
    for path in leaves(small):
        for value in DAMAGES:
            Path(changed).write_text(json.dumps(damaged(small, path, value)))
            for words in ((whole, changed), (changed, whole, "--json")):
                code = main(["compare", *words])
                printed = capsys.readouterr()
                lines = printed.err.splitlines()
                assert (code, len(lines)) in ((0, 0), (1, 1)), (path, value, printed)
                if code:
                    assert re.search(refusal, lines[0]), lines
                refusals += code
    assert refusals > 100


def test_a_killed_process_is_a_failure_with_its_last_output() -> None:
    process = VersionProcess(
        {
            "model": "petals",
            "models_dir": str(MODELS),
            "version": "tflite",
            "threads": 1,
        }
    )
    try:
        assert process.ask("open", seconds=TIMEOUT_S)["format"] == "tflite"
        process._child.process.kill()
        with pytest.raises(
            VersionFailure, match="its process ended with signal SIGKILL"
        ):
            process.ask("memory", seconds=TIMEOUT_S)
    finally:
        process.close()


def test_a_process_that_takes_too_long_is_a_failure() -> None:
    process = VersionProcess(
        {
            "model": "petals",
            "models_dir": str(MODELS),
            "version": "tflite",
            "threads": 1,
        }
    )
    try:
        with pytest.raises(VersionFailure, match="did not answer within 0 s"):
            process.ask("open", seconds=0)
    finally:
        process.close()
