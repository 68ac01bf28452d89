"""Serve a Hugging Face folder on a UNIX socket, in the engine's process.

It answers the routes of llama.cpp's server that our client asks, in the same form.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Container
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from pocketserve.quarantine.sandbox import confine_calls
from pocketserve.runtimes.hugging_face.fields import RefusedError
from pocketserve.runtimes.hugging_face.generator import EngineEvent, FolderModel
from pocketserve.runtimes.llm.settings import (
    CHAT,
    COMPLETIONS,
    TOKENIZE,
    EngineSettings,
)

MAX_BODY_BYTES: Final = 1 << 26


class ClientLeftError(Exception):
    """The connection of a request was closed."""


def serve_folder(settings: EngineSettings) -> None:
    """Serve a folder until standard input ends; this never returns."""
    try:
        model = _load(settings)
    except Exception as error:
        # The parent reports the last line.
        print(_one_line(error), file=sys.stderr, flush=True)
        os._exit(1)
    server = _FolderServer(settings.socket, model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    os._exit(0)


def _load(settings: EngineSettings) -> FolderModel:
    import torch
    import transformers

    # Imports start programs to find libraries, so that calls are confined after them.
    confine_calls(may_listen=True)
    torch.set_num_threads(settings.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    _refuse_own_code(settings.model, transformers.CONFIG_MAPPING)
    return FolderModel(settings, torch, transformers)


def _refuse_own_code(folder: str, supported: Container[str]) -> None:
    """Refuse an architecture that only the folder's own code could run."""
    with open(os.path.join(folder, "config.json"), "rb") as file:
        config = json.load(file)
    kind = config.get("model_type")
    if "auto_map" in config and kind not in supported:
        raise ValueError(
            f"its architecture ({kind!s:.40}) needs code of its own, which is not run;"
            " add the model's GGUF file instead"
        )


class _FolderServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, model: FolderModel) -> None:
        self.model = model
        super().__init__(path, _FolderHandler)


class _FolderHandler(BaseHTTPRequestHandler):
    """Answers one request of a connection."""

    server: _FolderServer
    protocol_version = "HTTP/1.0"

    def address_string(self) -> str:
        """Return a name for the log; a UNIX socket has no address."""
        return "client"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are no faults."""

    def do_GET(self) -> None:
        """Tell that the model is loaded, or wait until it is free."""
        if self.path == "/lora-adapters":
            with self.server.model.lock:
                self._send_json(200, [])
        elif self.path == "/health":
            self._send_json(200, {"status": "ok"})
        else:
            self._refuse(404, RefusedError("there is no such route"))

    def do_POST(self) -> None:
        """Answer a chat or a completion by events, or the tokens of a text."""
        if self.path not in (CHAT, COMPLETIONS, TOKENIZE):
            self._refuse(404, RefusedError("there is no such route"))
            return
        length = int(self.headers.get("Content-Length", 0))
        if length > MAX_BODY_BYTES:
            self._refuse(413, RefusedError("the request is too large"))
            return
        body = json.loads(self.rfile.read(length))
        if self.path == TOKENIZE:
            self._send_json(200, {"tokens": self.server.model.tokens(body["content"])})
            return
        with self.server.model.lock, contextlib.suppress(ClientLeftError, OSError):
            self._answer(body)

    def _answer(self, body: EngineEvent) -> None:
        model = self.server.model
        try:
            events = model.events(self.path, body)
        except RefusedError as error:
            self._refuse(400, error)
            return
        except Exception as error:  # a tokenizer's or a template's own
            text = f"the prompt cannot be read: {_one_line(error)[:300]}"
            self._refuse(400, RefusedError(text))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for event in events:
                self._check_client()
                self._send_event(event)
        except (ClientLeftError, OSError):
            raise
        except Exception as error:
            model.forget()
            text = _one_line(error)[:300]
            fault = {"code": 500, "message": text, "type": "server_error"}
            self._send_event({"error": fault})
            return
        self.wfile.write(b"data: [DONE]\n\n")

    def _send_event(self, event: EngineEvent) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _check_client(self) -> None:
        """Raise ClientLeftError if the connection was closed."""
        # Only Linux has POLLRDHUP. The client sends nothing after its request.
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
        with contextlib.suppress(BlockingIOError):
            if not self.connection.recv(1, flags):
                raise ClientLeftError

    def _refuse(self, status: int, error: RefusedError) -> None:
        fault = {"code": status, "message": str(error), "type": error.kind}
        self._send_json(status, {"error": {**fault, **error.details}})

    def _send_json(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


def _one_line(error: Exception) -> str:
    """Return an error's text on one line; its class if it has none."""
    return " ".join(str(error).split()) or repr(error)
