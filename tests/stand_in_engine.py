"""A program that stands for llama.cpp's server: it takes known flags only, and answers with fixed text.

A chat whose last message is ``STALL`` gets the first word only, until the client leaves.
"""

from __future__ import annotations

import stat
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

WORDS: Final = ("One", " two", " three")
STALL: Final = "stall"
NEW_FLAGS: Final = (
    *("--model", "--alias", "--host", "--ctx-size", "--parallel", "--batch-size"),
    *("--ubatch-size", "--threads", "--threads-batch", "--threads-http"),
    *("--cache-type-k", "--cache-type-v", "--cache-ram", "--fit", "--gpu-layers"),
    *("--jinja", "--offline", "--no-ui", "--no-slots", "--embedding", "--pooling"),
)
OLD_FLAGS: Final = (
    *("--model", "--alias", "--host", "--ctx-size", "--parallel", "--batch-size"),
    *("--ubatch-size", "--threads", "--n-gpu-layers", "--no-webui", "--no-slots"),
)
SWITCHES: Final = (
    *("--jinja", "--offline", "--no-ui", "--no-webui", "--no-slots", "--embedding"),
)

_PROGRAM: Final = """\
#!{python} -I
import json, socketserver, sys
from http.server import BaseHTTPRequestHandler

KNOWN, SWITCHES, WORDS, STALL = {known!r}, {switches!r}, {words!r}, {stall!r}
if "--help" in sys.argv:
    print("usage: llama-server")
    for flag in KNOWN:
        print("-x,   " + flag + " N    does something")
    sys.exit(0)
values, words = {{}}, sys.argv[1:]
while words:
    flag = words.pop(0)
    if flag not in KNOWN:
        sys.exit("error: invalid argument: " + flag)
    values[flag] = "" if flag in SWITCHES else words.pop(0)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("application/json", b"{{}}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_chat = self.path == "/v1/chat/completions"
        if is_chat and body["messages"][-1]["content"] == STALL:
            return self.stall()
        events = []
        for word in WORDS:
            text = {{"delta": {{"content": word}}}} if is_chat else {{"text": word}}
            events.append({{"choices": [{{"index": 0, **text}}]}})
        end = {{"index": 0, "delta": {{}}, "finish_reason": "stop"}}
        usage = {{"prompt_tokens": 1, "completion_tokens": len(WORDS)}}
        events += [{{"choices": [end]}}, {{"choices": [], "usage": usage}}]
        lines = ["data: " + json.dumps(event) for event in events] + ["data: [DONE]"]
        self.answer("text/event-stream", "".join(l + "\\n\\n" for l in lines).encode())

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stall(self):
        delta = {{"content": WORDS[0]}}
        event = {{"choices": [{{"index": 0, "delta": delta}}]}}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(("data: " + json.dumps(event) + "\\n\\n").encode())
        self.rfile.read(1)

    def address_string(self):
        return "parent"

    def log_message(self, *arguments):
        pass

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

Server(values["--host"], Handler).serve_forever()
"""


def write(
    folder: Path, known: Sequence[str] = NEW_FLAGS, words: Sequence[str] = WORDS
) -> Path:
    """Write the program into a folder for ``PATH``; return its path.

    Args:
        known: flags that it lists and takes.
        words: pieces of its answers.
    """
    folder.mkdir(exist_ok=True)
    program = folder / "llama-server"
    text = _PROGRAM.format(
        python=sys.executable,
        known=list(known),
        switches=SWITCHES,
        words=list(words),
        stall=STALL,
    )
    program.write_text(textwrap.dedent(text))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
