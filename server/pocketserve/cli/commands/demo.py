"""``pocketserve demo``: a real server with the embedded models answers requests."""

from __future__ import annotations

import argparse
import base64
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.config import embedded_models_dir
from pocketserve.local.own_server import own_server
from pocketserve.terminal.output import print_table, print_text

if TYPE_CHECKING:
    from pocketserve_client import Client


QUESTION = "Tell me a story about a fox."


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="start a server, ask it ten digits, a photo and a story"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the demo; fail unless every digit is recognized."""
    models = embedded_models_dir()
    samples = sorted((models / "digits" / "samples").glob("*.png"))
    print(f"$ pocketserve serve {models.name} --http-port 0 --socket-port 0")
    right = _ask_server(models, samples)
    for transport, count in right.items():
        print_text(f"{count} of {len(samples)} digits read correctly over {transport}")
    _chat(models.parent / "tests" / "models" / "chat")
    is_perfect = set(right.values()) == {len(samples)}
    if samples and is_perfect:
        return 0
    return 1


def _ask_server(models: Path, samples: list[Path]) -> dict[str, int]:
    """Start a server and send the requests; return correct digits by transport."""
    from pocketserve_client import Client

    right = {}
    with own_server(models) as server:
        print("a server answers and requires its token\n")
        addresses = {"HTTP": server.http, "the socket": server.socket}
        for transport, address in addresses.items():
            with Client(address, token_file=server.token_file) as client:
                print(f"over {transport}, at {address}:")
                right[transport] = _ask_digits(client, samples)
                _ask_petals(client)
        with Client(server.http, token_file=server.token_file) as client:
            _ask_photo(client, models / "numbers" / "samples" / "note.jpg")
    return right


def _ask_digits(client: Client, samples: list[Path]) -> int:
    """Print each sample's answer; return how many are correct."""
    client.load("digits")  # so that the first row's time excludes loading
    rows = []
    right = 0
    for sample in samples:
        started = time.perf_counter()
        answer = client.predict("digits", sample.read_bytes(), top_k=1)
        elapsed_ms = 1e3 * (time.perf_counter() - started)
        best = answer["predictions"][0]
        label = best["label"]
        if label == sample.stem:
            right += 1
        else:
            label += f"  (it shows a {sample.stem})"
        row = [
            sample.name,
            label,
            f"{best['score']:.3f}",
            f"{answer['timing_ms']['infer']:.2f}",
            f"{elapsed_ms:.2f}",
        ]
        rows.append(row)
    header = ["PICTURE", "ANSWER", "SCORE", "MODEL ms", "WHOLE CALL ms"]
    print_table(header, rows, spare=("MODEL ms",))
    return right


def _ask_petals(client: Client) -> None:
    flower = client.predict("petals", [5.1, 3.5, 1.4])["predictions"][0]
    width = f"{flower['value']:.2f} {flower['unit']}"
    print_text(
        f"petals: sepal 5.1 x 3.5 cm, petal length 1.4 cm -> petal width {width}\n\n"
    )


def _ask_photo(client: Client, photo: Path) -> None:
    """Print the digits on a photo, and save it with boxes.

    The picture is saved in a temporary folder: the current one may not be writable.
    """
    answer = client.predict("numbers", photo.read_bytes(), annotate="both")
    folder = Path(tempfile.mkdtemp(prefix="pocketserve-demo-"))
    drawn = folder / photo.with_suffix(".png").name
    drawn.write_bytes(base64.b64decode(answer["picture"]))
    entries = sorted(answer["predictions"], key=lambda entry: entry["box"]["x"])
    labels = " ".join(entry["label"] for entry in entries)
    print_text(f"numbers: {photo.name} shows {labels}")
    print_text(f"the picture with the boxes drawn is in {drawn}\n")


def _chat(model: Path) -> None:
    """Print a toy language model's answer as it is written.

    A wheel has no such model; a checkout does.
    """
    from pocketserve.runtimes.base import RuntimeMissingError
    from pocketserve.runtimes.llm.engines import find_engine
    from pocketserve_client import Client

    if not model.is_dir():
        return
    try:
        find_engine()
    except RuntimeMissingError as error:
        print_text(f"chat: {error}; then the demo streams an answer")
        return
    with (
        own_server(model) as server,
        Client(server.http, token_file=server.token_file) as client,
        client.chat(model.name, QUESTION, temperature=0) as stream,
    ):
        print(f"chat: {QUESTION}")
        for piece in stream:
            print(piece, end="", flush=True)
        print()
