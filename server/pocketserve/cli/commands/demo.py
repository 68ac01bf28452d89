"""``pocketserve demo``: a real server on the embedded models, asked real digits and a photo."""

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


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="start a server, ask it ten digits and a photo"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the demo; fails unless every digit is read correctly."""
    from pocketserve_client import Client

    models = embedded_models_dir()
    samples = sorted((models / "digits" / "samples").glob("*.png"))
    right = {}
    print(f"$ pocketserve serve {models.name} --http-port 0 --socket-port 0")
    with own_server(models) as server:
        print("a server answers and asks for its token\n")
        for transport, address in {
            "HTTP": server.http,
            "the socket": server.socket,
        }.items():
            with Client(address, token_file=server.token_file) as client:
                print(f"over {transport}, at {address}:")
                rows, right[transport] = _ask_digits(client, samples)
                print_table(
                    ["PICTURE", "ANSWER", "SCORE", "MODEL ms", "WHOLE CALL ms"],
                    rows,
                    spare=("MODEL ms",),
                )
                flower = client.predict("petals", [5.1, 3.5, 1.4])["predictions"][0]
                text = f"{flower['value']:.2f} {flower['unit']}"
                print_text(
                    f"petals: sepal 5.1 x 3.5 cm, petal length 1.4 cm -> petal width {text}\n\n"
                )
        with Client(server.http, token_file=server.token_file) as client:
            _ask_photo(client, models / "numbers" / "samples" / "note.jpg")
    for transport, count in right.items():
        print_text(f"{count} of {len(samples)} digits read correctly over {transport}")
    return 0 if samples and set(right.values()) == {len(samples)} else 1


def _ask_digits(client: Client, samples: list[Path]) -> tuple[list[list[str]], int]:
    client.load("digits")  # so that the first row does not pay for loading
    rows, right = [], 0
    for sample in samples:
        started = time.perf_counter()
        answer = client.predict("digits", sample.read_bytes(), top_k=1)
        elapsed = time.perf_counter() - started
        best = answer["predictions"][0]
        right += best["label"] == sample.stem
        label = best["label"] + (
            "" if best["label"] == sample.stem else f"  (it shows a {sample.stem})"
        )
        timing = answer["timing_ms"]["infer"]
        rows.append(
            [
                sample.name,
                label,
                f"{best['score']:.3f}",
                f"{timing:.2f}",
                f"{1e3 * elapsed:.2f}",
            ]
        )
    return rows, right


def _ask_photo(client: Client, photo: Path) -> None:
    """Print the digits on a photo from left to right, and where the picture with their boxes is.

    The demo runs from any folder, also one that cannot be written: the picture gets a temporary one, which stays.
    """
    answer = client.predict("numbers", photo.read_bytes(), annotate="both")
    drawn = (
        Path(tempfile.mkdtemp(prefix="pocketserve-demo-"))
        / photo.with_suffix(".png").name
    )
    drawn.write_bytes(base64.b64decode(answer["picture"]))
    entries = sorted(answer["predictions"], key=lambda entry: entry["box"]["x"])
    print_text(
        f"numbers: {photo.name} shows {' '.join(entry['label'] for entry in entries)}"
    )
    print_text(f"the picture with the boxes drawn is in {drawn}\n")
