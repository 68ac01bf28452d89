"""``pocketserve compress``: makes a model smaller by training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.terminal.errors import EXIT_DONE, CommandError
from pocketserve.terminal.output import human_bytes, print_json, print_table, printable
from pocketserve.terminal.progress import Progress
from pocketserve_lab.conversion import (
    add_common_options,
    conversion_errors,
    model_of,
    noting,
    process_limits,
)

if TYPE_CHECKING:
    from pocketserve_lab.compress.run import Compression, CompressionSettings


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compress",
        help="make a model smaller with labelled data, "
        "and measure its accuracy before and after",
        description="Runs a recipe on an unconverted PyTorch model: it prunes, "
        "clusters, quantises or distils it, with labelled samples of yours. The result "
        "becomes a new version beside the original, unless its accuracy on unseen "
        "samples falls too far.",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a model's name, file or folder"
    )
    parser.add_argument("--recipe", metavar="NAME", help="the recipe; --list shows all")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="labelled samples: a folder, CSV or .npz file",
    )
    parser.add_argument(
        "--test",
        type=Path,
        metavar="PATH",
        help="labelled samples for the measurement [a quarter of --data]",
    )
    parser.add_argument(
        "--amount",
        type=float,
        metavar="SHARE",
        help="the share of weights or channels to remove",
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of training")
    parser.add_argument(
        "--clusters",
        type=int,
        metavar="N",
        help="the number of different weights per layer",
    )
    parser.add_argument(
        "--student",
        type=Path,
        metavar="FILE",
        help="a model.py whose build() returns the student",
    )
    parser.add_argument(
        "--max-loss",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="the accepted loss of accuracy [0.05]",
    )
    parser.add_argument(
        "--version",
        dest="model_version",
        metavar="NAME",
        help="the version to compress",
    )
    parser.add_argument("--list", action="store_true", help="list the recipes")
    add_common_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Compress and print; or list."""
    with conversion_errors(options):
        if options.list:
            return _list_recipes(options)
        if options.model is None or options.recipe is None or options.data is None:
            raise CommandError(
                "name a model, a recipe and data: pocketserve compress MODEL "
                "--recipe magnitude-pruning --data FOLDER (--list shows the recipes)"
            )
        return _compress(options)


def _list_recipes(options: argparse.Namespace) -> int:
    from pocketserve_lab.compress.registry import recipes

    if options.json:
        documents = {}
        for name, recipe in recipes().items():
            documents[name] = {"summary": recipe.summary, "options": recipe.defaults}
        print_json({"recipes": documents})
        return EXIT_DONE
    rows = []
    for recipe in recipes().values():
        words = [f"--{name} {value:g}" for name, value in recipe.defaults.items()]
        if recipe.takes_student:
            words.append("--student FILE")
        rows.append([recipe.name, " ".join(words), recipe.summary])
    print_table(["RECIPE", "OPTIONS", "IT"], rows)
    return EXIT_DONE


def _compress(options: argparse.Namespace) -> int:
    from pocketserve_lab.compress.registry import recipe_named
    from pocketserve_lab.compress.run import ModelCompressor
    from pocketserve_lab.convert.run import ConversionSettings

    goals = _compression_settings(options)
    recipe = recipe_named(options.recipe)
    limits = process_limits(options)
    selected = model_of(options)
    settings = ConversionSettings(
        selected.config.models_dir,
        selected.config.state_dir,
        version=selected.version,
        name=options.name,
        limits=limits,
    )
    progress = Progress(lines=True)
    compressor = ModelCompressor(
        selected.entry, recipe, settings, goals, progress.show, noting(progress)
    )
    try:
        compression = compressor.compress()
    finally:
        progress.end()
        compressor.close()
    if options.json:
        print_json({"model": selected.entry.name, **_plain(compression)})
    else:
        _print_result(compression)
    return EXIT_DONE


def _compression_settings(options: argparse.Namespace) -> CompressionSettings:
    from pocketserve_lab.compress.run import CompressionSettings

    if not 0 <= options.max_loss <= 1:
        raise CommandError(
            f"--max-loss must be between 0 and 1, not {options.max_loss:g}"
        )
    for path in (options.data, options.test):
        if path is not None and not path.exists():
            raise CommandError(
                f"the data {str(path)!r} does not exist; name labelled samples"
            )
    numbers = {
        "amount": options.amount,
        "epochs": options.epochs,
        "clusters": options.clusters,
    }
    return CompressionSettings(
        options.data, options.test, numbers, options.student, options.max_loss
    )


def _plain(compression: Compression) -> dict[str, Any]:
    conversion = compression.conversion
    return {
        "version": conversion.version,
        "source": conversion.source,
        "path": str(conversion.path),
        "metric": compression.before.metric,
        "before": compression.before.value,
        "after": compression.after.value,
        "test_samples": compression.after.samples,
        "training_samples": compression.trained,
        "bytes": [conversion.source_bytes, conversion.result_bytes],
        "gzip_bytes": compression.gzip_bytes,
        "tools": conversion.tools,
        "notes": conversion.notes,
    }


def _print_result(compression: Compression) -> None:
    conversion = compression.conversion
    score = f"{compression.before} -> {compression.after}"
    sizes = [
        _change_of_size(conversion.source_bytes, conversion.result_bytes),
        _change_of_size(*compression.gzip_bytes),
    ]
    head = ["NEW VERSION", "FROM", compression.after.metric.upper(), "BYTES", "GZIP"]
    print_table(head, [[conversion.version, conversion.source, score, *sizes]])
    for note in conversion.notes:
        print(printable(f"{conversion.version}: {note}"))
    print(
        f"It was made with {compression.trained} samples "
        f"and measured on {compression.after.samples} others."
    )


def _change_of_size(before: int, after: int) -> str:
    return f"{human_bytes(before)} -> {human_bytes(after)}"
