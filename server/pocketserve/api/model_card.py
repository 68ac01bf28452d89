"""A model's card: what it takes and gives in words, and requests to copy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.tasks.base import Describer

DEFAULT_PORT = 8470
SHOWN_LABELS = 5
PLAIN = {"input": "numbers: a JSON array, an object of arrays by input name, or a .npy file", "example": "input.json"}

EXAMPLES = {
    "curl": """curl -H "Authorization: Bearer $(pocketserve token)" \\
  -T {file} {shell_url}""",
    "python": """from pathlib import Path
from pocketserve_client import Client

with Client() as client:
    print(client.predict({model}, Path({quoted_file}).read_bytes())["predictions"])""",
    "java": """HttpURLConnection connection = (HttpURLConnection) new URL({url}).openConnection();
connection.setRequestMethod("POST");
connection.setRequestProperty("Authorization", "Bearer " + token);
connection.setDoOutput(true);
connection.getOutputStream().write(bytes);  // of {file}
String json = new Scanner(connection.getInputStream(), "UTF-8").useDelimiter("\\\\A").next();""",
}


def card(model: LoadedModel, port: int = DEFAULT_PORT, local: str = "") -> dict[str, Any]:
    """Return the card of a loaded model.

    Args:
        port: 0 stands for the usual one.
        local: for a model that no server serves: the arguments of ``predict --local`` that name it.

    Returns:
        ``task``; ``input``, ``preprocessing`` and ``answer`` where the task tells them; ``labels`` (their count) and
        ``first_labels`` where there are any; ``examples`` by language: ``curl``, ``python``, ``java``; of a model
        that is not served, ``shell``.
    """
    task = model.task
    texts: Mapping[str, str] = task.describe() if isinstance(task, Describer) else PLAIN
    file = texts.get("example", PLAIN["example"])
    labels = list(getattr(task, "labels", ()))
    url = f"http://127.0.0.1:{port or DEFAULT_PORT}/predictions/{quote(model.entry.name, safe='')}"
    parts = {
        "file": file,
        "quoted_file": json.dumps(file),
        "model": json.dumps(model.entry.name),
        "url": json.dumps(url),
        "shell_url": f"'{url}'" if "%" in url else url,
    }
    examples = {language: text.format(**parts) for language, text in EXAMPLES.items()}
    facts: dict[str, Any] = {
        "task": task.name,
        **{key: texts[key] for key in ("input", "preprocessing", "answer") if key in texts},
        "labels": len(labels),
        "first_labels": labels[:SHOWN_LABELS],
        "examples": {"shell": f"pocketserve predict --local {local} {file}"} if local else examples,
    }
    return {key: value for key, value in facts.items() if value}
