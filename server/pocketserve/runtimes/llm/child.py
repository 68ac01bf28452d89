"""The process of one language model: confines itself, then serves a UNIX socket.

Started by :mod:`pocketserve.runtimes.llm.process`, in the folder of its socket, with
its settings as JSON on the command line. It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pocketserve.quarantine.sandbox import (
    confine_calls,
    confine_files,
    limit_resources,
)
from pocketserve.runtimes.llm.settings import EngineSettings

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Confine this process and serve the model until the parent ends it."""
    request = json.loads(arguments[0])
    settings = EngineSettings(**request["settings"])
    _limit(request["data_limit"])
    os.umask(0o077)
    confine_files(request["rules"])
    if settings.program:
        _become_program(request["arguments"], request["parent"])
    if settings.dtype:
        from pocketserve.runtimes.hugging_face.engine import serve_folder

        serve_folder(settings)
    _serve(settings)
    return 0


def _limit(data_bytes: int) -> None:
    """Forbid core files, bound the memory, and bound the log that the parent reads."""
    limit_resources(
        {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: data_bytes,
            resource.RLIMIT_FSIZE: 1 << 20,
        }
    )


def _become_program(arguments: list[str], parent: int) -> None:
    """Replace this process by llama.cpp's server.

    It doesn't watch its standard input, so the system ends it with its parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    confine_calls(may_start_processes=True, may_listen=True)
    os.execv(arguments[0], arguments)


def _serve(settings: EngineSettings) -> None:
    import xllamacpp  # late: after the files are confined; it needs seconds

    parameters = xllamacpp.CommonParams()
    _set_parameters(parameters, settings, xllamacpp)
    confine_calls(may_listen=True)
    server = xllamacpp.Server(parameters)
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    # The interpreter would wait for open requests.
    os._exit(0 if server is not None else 1)


def _set_parameters(target: Any, settings: EngineSettings, library: Any) -> None:
    """Set everything that matters, whatever the library's defaults are."""
    target.model.path = settings.model
    target.model_alias = {settings.alias}
    target.hostnames = [settings.socket]
    target.port = 0
    target.n_ctx = settings.context
    target.n_parallel = 1
    target.n_batch = settings.batch
    target.n_ubatch = settings.batch
    target.cpuparams.n_threads = settings.threads
    target.cpuparams_batch.n_threads = settings.threads
    target.n_threads_http = settings.http_threads
    cache = getattr(library.ggml_type, f"GGML_TYPE_{settings.cache.upper()}")
    target.cache_type_k = cache
    target.cache_type_v = cache
    if settings.pooling:
        target.embedding = True
        pooling = f"LLAMA_POOLING_TYPE_{settings.pooling.upper()}"
        target.pooling_type = getattr(library.llama_pooling_type, pooling)
    _switch_off(target)


def _switch_off(target: Any) -> None:
    """Switch off all that reaches the network, writes files or shows prompts."""
    target.offline = True
    target.fit_params = False
    target.ui = False
    target.ui_mcp_proxy = False
    target.endpoint_slots = False
    target.endpoint_props = False
    target.endpoint_metrics = False
    target.cache_ram_mib = 0
    target.n_gpu_layers = 0
    target.verbosity = 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
