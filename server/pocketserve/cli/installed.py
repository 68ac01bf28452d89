"""The commands that other distributions add, such as those of pocketserve-lab."""

from __future__ import annotations

from functools import cache

GROUP = "pocketserve.commands"
"""The group of entry points, from a command's name to its module.

The module has ``add_parser`` and ``run``.
"""

LAB_COMMANDS = (
    "bench",
    "codegen",
    "convert",
    "compress",
    "compare",
    "export",
    "scale",
    "simulate",
)
"""The commands of pocketserve-lab, in the order of ``--help``."""


@cache
def installed_commands() -> dict[str, str]:
    """Return the module of each command that another distribution adds."""
    # Late: the server's own commands don't need it.
    from importlib.metadata import entry_points

    modules = {point.name: point.value for point in entry_points(group=GROUP)}
    in_lab = [name for name in LAB_COMMANDS if name in modules]
    foreign = sorted(modules.keys() - set(LAB_COMMANDS))
    return {name: modules[name] for name in (*in_lab, *foreign)}
