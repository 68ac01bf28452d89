"""waitress has every private name that the HTTP transport uses.

waitress documents few of these, and may change them in any release. After an update,
read each use of a name that this test reports before you change the pin.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import tomllib
from importlib.metadata import version

import pytest
from waitress.adjustments import Adjustments
from waitress.buffers import ReadOnlyFileBasedBuffer
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, Task, WSGITask
from waitress.trigger import trigger

from places import ROOT

ATTRIBUTES: dict[type, str] = {
    HTTPRequestParser: """
        adj body_bytes_received body_rcv chunked command completed content_length empty
        error expect_continue header_plus headers parse_header path proxy_netloc
        proxy_scheme received version
    """,
    HTTPChannel: """
        _flush_exception _flush_some adj close_when_flushed connected error_task_class
        handle_close handle_read handle_write outbuf_lock parser_class readable received
        request requests requests_lock send server service task_class
        total_outbufs_len will_close writable write_soon
    """,
    TcpWSGIServer: """
        _map accept accepting active_channels add_task adj asyncore channel_class close
        handle_accept pull_trigger readable set_socket_options task_dispatcher trigger
    """,
    WSGITask: "execute get_environment write",
    ErrorTask: "execute",
    Task: """
        build_response_header channel complete content_bytes_written content_length
        has_body request response_headers set_close_on_finish start_time status version
        wrote_header
    """,
    ReadOnlyFileBasedBuffer: "close get skip",
    trigger: "pull_trigger trigger",
    Adjustments: """
        asyncore_use_poll clear_untrusted_proxy_headers expose_tracebacks host ident
        inbuf_overflow max_request_body_size max_request_header_size
        outbuf_high_watermark outbuf_overflow sockets
    """,
}


def attributes_of(owner: type) -> set[str]:
    """Return the attributes of a class, and those that its methods assign."""
    names = set(dir(owner))
    for base in inspect.getmro(owner):
        if not base.__module__.startswith("waitress"):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Tuple):  # assigned together
                for item in node.elts:
                    if isinstance(item, ast.Attribute):
                        names.add(item.attr)
    return names


@pytest.mark.parametrize("owner", ATTRIBUTES, ids=lambda owner: owner.__name__)
def test_waitress_has_the_names_in_use(owner: type) -> None:
    missing = set(ATTRIBUTES[owner].split()) - attributes_of(owner)
    assert not missing, (
        f"waitress {version('waitress')}: {owner.__name__} has no "
        f"{', '.join(sorted(missing))}; check transports/http for each use"
    )


def test_write_soon_recognizes_memory_buffers() -> None:
    """``MemoryBuffer`` is sent without a copy only if write_soon checks the class."""
    source = inspect.getsource(HTTPChannel.write_soon)
    assert "isinstance(data, ReadOnlyFileBasedBuffer)" in source


def test_waitress_is_pinned_to_the_minor_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [each for each in project["dependencies"] if each.startswith("waitress")]
    assert pins == ["waitress>=3.0.1,<3.1"]
