"""The JavaScript client in a real Chromium, and its types in the TypeScript compiler."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from browser_tool import tool
from browsing import LIMIT_MS, pages, started_chromium
from conftest import MODELS, ROOT, StartServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.live]

PACKAGE = ROOT / "client" / "js"
USE = """async ([url, token, sample]) => {
  const { Client, Tensor } = await import("/src/index.js");
  const client = new Client({ url, token });
  const picture = await fetch(`data:image/png;base64,${sample}`);
  const answer = await client.predict("digits", await picture.blob(), { topK: 1 });
  const metadata = await client.modelMetadata("petals");
  const [input] = metadata.inputs;
  const values = new Tensor(new Float32Array([5.1, 3.5, 1.4]), [1, 3]);
  const { outputs } = await client.infer("petals", { [input.name]: values });
  const [output] = Object.values(outputs);
  const refused = await client.predict("missing", [1]).catch((error) => error);
  return {
    label: answer.predictions[0].label,
    shape: output.shape,
    code: refused.code,
  };
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    yield from started_chromium()


def test_client_in_a_page_of_another_origin(
    chromium: Browser, new_server: StartServer
) -> None:
    contents = {"/": ("<!doctype html><title>an app</title>", "text/html")}
    for file in (PACKAGE / "src").glob("*.js"):
        contents[f"/src/{file.name}"] = (file.read_text("utf-8"), "text/javascript")
    sample = base64.b64encode((MODELS / "digits" / "samples" / "7.png").read_bytes())
    with pages(contents) as (port, _):
        origin = f"http://127.0.0.1:{port}"
        server = new_server(MODELS, "--allowed-origins", origin)
        page = chromium.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.goto(origin)
        arguments = [server.url, server.token, sample.decode()]
        answer = page.evaluate(USE, arguments)
        page.close()
    assert answer == {
        "label": "7",
        "shape": [1, 1],
        "code": "MODEL_NOT_FOUND",
    }


def test_types_are_right() -> None:
    command = tool().provide_typescript()
    command += ["--strict", "--noEmit", "--noUncheckedIndexedAccess"]
    command += ["--target", "es2022", "--module", "nodenext"]
    done = subprocess.run(
        [*command, "test/types.ts"],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_page_of_the_guide(chromium: Browser, new_server: StartServer) -> None:
    guide = (ROOT / "docs" / "app-developer.md").read_text("utf-8")
    (html,) = re.findall(r"^```html page\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    contents = {}
    for file in (PACKAGE / "src").glob("*.js"):
        text = file.read_text("utf-8")
        contents[f"/pocketserve/{file.name}"] = (text, "text/javascript")
    with pages(contents) as (port, _):
        origin = f"http://127.0.0.1:{port}"
        server = new_server(MODELS, "--allowed-origins", origin)
        document = html.replace("http://127.0.0.1:8470", server.url)
        contents["/"] = (document, "text/html")
        page = chromium.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.goto(origin)
        page.fill("#token", str(server.token))
        page.set_input_files("#photo", str(MODELS / "digits" / "samples" / "7.png"))
        page.wait_for_function("document.getElementById('answer').textContent === '7'")
        page.close()
