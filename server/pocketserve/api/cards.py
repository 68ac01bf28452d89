"""A model's card: what it takes and gives in words, and requests to copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.tasks.base import Described

DEFAULT_PORT = 8470
SHOWN_LABELS = 5
PLAIN = {"input": "numbers: a JSON array, an object of arrays by input name, or a .npy file", "example": "input.json"}

CURL = """curl -H "Authorization: Bearer $(pocketserve token)" \\
  -T {file} {url}"""

PYTHON = """from pathlib import Path
from pocketserve_client import Client

with Client() as client:
    print(client.predict({model}, Path({file}).read_bytes())["predictions"])"""

JAVA = """HttpURLConnection connection = (HttpURLConnection) new URL({url}).openConnection();
connection.setRequestMethod("POST");
connection.setRequestProperty("Authorization", "Bearer " + token);
connection.setDoOutput(true);
connection.getOutputStream().write(bytes);  // of {file}
String json = new Scanner(connection.getInputStream(), "UTF-8").useDelimiter("\\\\A").next();"""


def card(model: LoadedModel, port: int = DEFAULT_PORT, local: str = "") -> dict[str, Any]:
    """The card of a loaded model.

    Args:
        port: where the server listens for HTTP; 0 stands for the usual one.
        local: for a model that no server serves: the arguments of ``predict --local`` that name it.

    Returns:
        ``task``; ``input``, ``preprocessing`` and ``answer`` where the task tells them; ``labels`` (their count) and
        ``first_labels`` where there are any; ``examples`` by language: ``curl``, ``python``, ``java``; of a model
        that is not served, ``shell``.
    """
    task = model.task
    said: Mapping[str, str] = task.describe() if isinstance(task, Described) else PLAIN
    example = said.get("example", PLAIN["example"])
    labels = list(getattr(task, "labels", ()))
    facts: dict[str, Any] = {
        "task": task.name,
        **{key: said[key] for key in ("input", "preprocessing", "answer") if key in said},
        "labels": len(labels),
        "first_labels": labels[:SHOWN_LABELS],
        "examples": {"shell": f"pocketserve predict --local {local} {example}"}
        if local
        else _examples(model.entry.name, example, port or DEFAULT_PORT),
    }
    return {key: value for key, value in facts.items() if value}


def _examples(model: str, file: str, port: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}/predictions/{quote(model, safe='')}"
    quoted = {"model": json.dumps(model), "file": json.dumps(file), "url": json.dumps(url)}
    return {
        "curl": CURL.format(file=file, url=f"'{url}'" if "%" in url else url),
        "python": PYTHON.format(**quoted),
        "java": JAVA.format(**{**quoted, "file": file}),
    }
