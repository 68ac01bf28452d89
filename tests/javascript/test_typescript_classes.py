"""Generated TypeScript classes, checked by the compiler and run against a server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from browser_tool import tool
from codegen_models import write_models
from conftest import MODELS, ROOT, Server, start_server
from drawn import person
from pocketserve.cli import main
from pocketserve_client import Client

pytest.importorskip("onnx", reason="makes the models")
pytestmark = [pytest.mark.browser, pytest.mark.live, pytest.mark.onnx]

PACKAGE = ROOT / "client" / "js"
LIMIT_S = 300
STRICT = ("--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes")
TARGET = ("--target", "es2022", "--module", "nodenext")
NODE = """
declare module "node:fs" {
  export function readFileSync(path: string): Uint8Array;
}
declare const process: { argv: string[] };
"""
USE = """
import { readFileSync } from "node:fs";
import { Client, Tensor } from "pocketserve";
import { Answers } from "./Answers.js";
import { Digits, LABELS, type Label } from "./Digits.js";
import { Hostile } from "./Hostile.js";
import { Petals } from "./Petals.js";
import { Phrases } from "./Phrases.js";
import { Poses } from "./Poses.js";
import { Shelf } from "./Shelf.js";

const [url = "", token = "", seven = "", person = ""] = process.argv.slice(2);
const client = new Client({ url, token });
const picture = readFileSync(seven);

const digits = await new Digits(client).classify(picture, { topK: 1 });
const label: Label | undefined = digits.predictions[0]?.label;
const row = { sepal_length: 5.1, sepal_width: 3.5, petal_length: 1.4 };
const petals = new Petals(client);
const width = await petals.predict([row, row]);
const features = new Tensor(new Float32Array([5.1, 3.5, 1.4]), [1, 3]);
const { petal_width: tensor } = await petals.infer({ features });
const question = await new Answers(client).answer("where does anna live?", "anna lives in oslo.");
const phrases = await new Phrases(client).compare("turn on the light", ["play", "turn on the light"]);
const shelf = await new Shelf(client).recommend([1, 2], { topK: 1 });
const poses = await new Poses(client).estimate(readFileSync(person));
const hard = { class: 1, "*/ evil": 2, while: 9, "a b": 3, "a-b": 4, $x: 5, getClass: 6 };
const hostile = await new Hostile(client).classify([hard], { topK: 1 });

// @ts-expect-error: no such label
if (label === "eleven") throw new Error();
// @ts-expect-error: a misspelt feature
await petals.predict([{ ...row, petal_lenght: 1 }]);
// @ts-expect-error: a wrong array
await petals.infer({ features: new Tensor(new Int32Array(3), [1, 3]) }).catch(() => {});

console.log(JSON.stringify({
  label: label === undefined ? -1 : LABELS.indexOf(label),
  widths: width.predictions.map((entry) => entry.value.toFixed(1) + entry.unit),
  tensor: tensor.data[0]?.toFixed(1),
  span: question.predictions[0]?.answer,
  match: phrases.predictions[0]?.index,
  items: shelf.predictions.length,
  points: poses.predictions[0]?.keypoints.length,
  hostile: hostile.predictions[0]?.index,
}));
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on a model of every task and datatype."""
    models = write_models(tmp_path_factory.mktemp("models"))
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


def test_classes_compile_and_answer(live: Server, tmp_path: Path) -> None:
    generate_all(live, tmp_path)
    (tmp_path / "use.ts").write_text(USE, "ascii")
    (tmp_path / "node.d.ts").write_text(NODE, "ascii")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (modules / "pocketserve").symlink_to(PACKAGE)
    sources = sorted(file.name for file in tmp_path.glob("*.ts"))
    run([*tool().provide_typescript(), *STRICT, *TARGET, *sources], tmp_path)
    picture = tmp_path / "person.png"
    person(1, 320, 240)[0].save(picture)
    seven = MODELS / "digits" / "samples" / "7.png"
    arguments = [live.url, str(live.token), str(seven), str(picture)]
    answer = json.loads(run(["node", "use.js", *arguments], tmp_path))
    assert answer == {
        "label": 7,
        "widths": ["0.2cm", "0.2cm"],
        "tensor": "0.2",
        "span": "oslo",
        "match": 1,
        "items": 1,
        "points": answer["points"],
        "hostile": 2,
    }
    assert answer["points"] > 1


def generate_all(server: Server, folder: Path) -> None:
    """Write the class of each model."""
    with Client(server.url, server.token) as client:
        names = sorted({entry["name"] for entry in client.index()})
    where = ["--url", server.url, "--token-file", server.ready["token_file"]]
    for name in names:
        words = ["codegen", name, "--language", "typescript", "--output", str(folder)]
        assert main([*words, *where]) == 0
    assert len(list(folder.glob("*.ts"))) == len(names)


def run(command: list[str], folder: Path) -> str:
    """Run a tool, and return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"[-4000:]
    return done.stdout
