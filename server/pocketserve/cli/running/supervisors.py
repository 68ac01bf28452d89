"""Supervisors that keep a server running: runit, Termux:Boot and systemd."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pocketserve.config import APP_NAME, default_state_dir, load_config
from pocketserve.engine.device.programs import Outcome, run_program
from pocketserve.state.run_lock import running_servers

MARKER = (
    "# Written by `pocketserve service install`, which replaces it; "
    "`pocketserve service remove` removes it."
)
SETTINGS_FILE = "$HOME/.config/pocketserve/environment"
# Another app may have taken the ports meanwhile; --port-wait waits for them.
SERVE = ("serve", "--port-wait", "60")
ANSWER_TIMEOUT_S = 10.0
END_TIMEOUT_S = 75.0  # longer than a server may drain


class Supervisor:
    """A kind of service, as the command sees it.

    Attributes:
        kind: its name on the command line.
        notes: hints for users before the first start.
    """

    kind: str
    notes: tuple[str, ...] = ()

    def is_here(self) -> bool:
        """Return whether this machine has it."""
        raise NotImplementedError

    def files(self, folder: Path | None) -> dict[Path, str]:
        """Return texts by path, the server's script last.

        Args:
            folder: the models folder; None leaves it to the settings.
        """
        raise NotImplementedError

    def commands(self) -> list[tuple[str, str]]:
        """Return purposes with the command for each."""
        raise NotImplementedError

    def is_enabled(self) -> bool:
        """Return whether it starts the server automatically."""
        raise NotImplementedError

    def is_running(self) -> bool:
        """Return whether the server runs now."""
        raise NotImplementedError

    def before_install(self) -> None:
        """Make sure that writing the files doesn't start the server."""

    def after_change(self) -> None:
        """Have the files read again."""

    def end(self) -> None:
        """End its server, and don't start it again."""

    def clear(self) -> None:
        """Remove its own files beside those of the service."""


class Runit(Supervisor):
    """A service folder of runit, which termux-services watches in Termux."""

    kind = "runit"

    notes = (
        "A running supervisor needs five seconds to see a new service.",
        "In Termux, close it and open it again if termux-services is new: that starts its supervisor.",
        "It restarts the server whenever it ends, also after `pocketserve stop`.",
    )

    @property
    def folder(self) -> Path:
        """Return the service's folder."""
        services = os.environ.get("SVDIR")
        if services:
            return Path(services) / APP_NAME
        if in_termux():
            return Path(os.environ["PREFIX"]) / "var/service" / APP_NAME
        return Path.home() / "service" / APP_NAME

    @property
    def log(self) -> Path:
        """Return the folder of the log."""
        if not in_termux():
            return default_state_dir() / "log"
        logs = os.environ.get("LOGDIR") or f"{os.environ['PREFIX']}/var/log"
        return Path(logs) / "sv" / APP_NAME

    def is_here(self) -> bool:
        """Return whether ``sv`` and a folder of services exist."""
        return shutil.which("sv") is not None and self.folder.parent.is_dir()

    def files(self, folder: Path | None) -> dict[Path, str]:
        """Return the scripts of the log and of the server."""
        log = shlex.quote(str(self.log))
        return {
            self.folder / "log/run": _script(
                f"mkdir -p {log}", f"exec svlogd -tt {log}"
            ),
            self.folder / "run": _script(
                "exec 2>&1", *_wake_lock(), *start_lines(folder)
            ),
        }

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands of termux-services, or of plain runit."""
        folder = brief(self.folder)
        if shutil.which("sv-enable") is not None:
            start = f"sv-enable {APP_NAME}"
            stop = f"sv-disable {APP_NAME}"
        else:
            start = f"rm -f {folder}/down; sv up {folder}"
            stop = f"touch {folder}/down; sv down {folder}"
        log = f"tail -f {brief(self.log / 'current')}"
        return [("start", start), ("stop", stop), ("read the log", log)]

    def is_enabled(self) -> bool:
        """Return whether there is no ``down`` file."""
        return not (self.folder / "down").exists()

    def is_running(self) -> bool:
        """Return whether ``sv status`` says so."""
        return _ask("sv", "status", str(self.folder)).output.startswith("run:")

    def before_install(self) -> None:
        """Disable a new service, which runit would start within seconds."""
        if not (self.folder / "run").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "down").touch()

    def end(self) -> None:
        """End the server and its supervisor."""
        (self.folder / "down").touch()
        _ask(
            "sv", "-w", "70", "force-shutdown", str(self.folder), timeout=END_TIMEOUT_S
        )

    def clear(self) -> None:
        """Remove the folder, unless it has other files."""
        (self.folder / "down").unlink(missing_ok=True)
        for folder in (self.folder / "log", self.folder):
            shutil.rmtree(folder / "supervise", ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()


class TermuxBoot(Supervisor):
    """A script that the app Termux:Boot runs after the phone has started."""

    kind = "boot"
    notes = (
        "Open the Termux:Boot app once; without that, Android does not start it.",
        "Only the start of the phone starts the server; "
        "nothing restarts it after it has ended.",
    )

    def is_here(self) -> bool:
        """Return whether this is Termux; the app itself can't be detected."""
        return in_termux()

    def files(self, folder: Path | None) -> dict[Path, str]:
        """Return the script, which does nothing if termux-services start the server."""
        service = Runit().folder
        run = shlex.quote(str(service / "run"))
        down = shlex.quote(str(service / "down"))
        lines = [
            *_wake_lock(),
            f"if [ -e {run} ] && [ ! -e {down} ]; then",
            "    # Its supervisor starts it; the profile starts the supervisor.",
            '    . "$PREFIX/etc/profile"',
            "    exit",
            "fi",
            f"mkdir -p {shlex.quote(str(self._log.parent))}",
            f"exec >>{shlex.quote(str(self._log))} 2>&1",
            *start_lines(folder),
        ]
        return {Path.home() / ".termux/boot" / APP_NAME: _script(*lines)}

    @property
    def _log(self) -> Path:
        return default_state_dir() / "boot.log"

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands for a server without a supervisor."""
        script = next(iter(self.files(None)))
        return [
            ("start", f"sh {brief(script)} &"),
            ("stop", "pocketserve stop"),
            ("read the log", f"tail -f {brief(self._log)}"),
        ]

    def is_enabled(self) -> bool:
        """Return True: Termux:Boot runs every script of its folder."""
        return True

    def is_running(self) -> bool:
        """Return whether any server of this user runs."""
        return bool(running_servers(load_config({}).state_dir))


class Systemd(Supervisor):
    """A unit of the user's systemd manager."""

    kind = "systemd"
    notes = (
        "It runs while you are logged in; "
        "`loginctl enable-linger` has it run from the machine's start on.",
    )

    def is_here(self) -> bool:
        """Return whether the user's systemd manager answers."""
        return _ask("systemctl", "--user", "show-environment").code == 0

    def files(self, folder: Path | None) -> dict[Path, str]:
        """Return the unit.

        More sandboxing needs user namespaces, which many systems forbid.
        """
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        lines = (
            MARKER,
            "[Unit]",
            "Description=Pocketserve, machine-learning models on this device",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart=/bin/sh -c {_unit_word(chr(10).join(start_lines(folder)))}",
            "Restart=on-failure",
            "RestartSec=5",
            "NoNewPrivileges=yes",
            "",
            "[Install]",
            "WantedBy=default.target",
        )
        return {base / "systemd/user" / f"{APP_NAME}.service": "\n".join(lines) + "\n"}

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands of systemd."""
        return [
            ("start", f"systemctl --user enable --now {APP_NAME}"),
            ("stop", f"systemctl --user disable --now {APP_NAME}"),
            ("read the log", f"journalctl --user -u {APP_NAME} -f"),
        ]

    def is_enabled(self) -> bool:
        """Return whether systemd says so."""
        return _ask("systemctl", "--user", "is-enabled", APP_NAME).code == 0

    def is_running(self) -> bool:
        """Return whether systemd says so."""
        return _ask("systemctl", "--user", "is-active", APP_NAME).code == 0

    def after_change(self) -> None:
        """Have systemd reload its units."""
        _ask("systemctl", "--user", "daemon-reload")

    def end(self) -> None:
        """Stop and disable the unit."""
        _ask("systemctl", "--user", "disable", "--now", APP_NAME, timeout=END_TIMEOUT_S)


SUPERVISORS: tuple[Supervisor, ...] = (Runit(), TermuxBoot(), Systemd())
"""The first one that a machine has is used."""


def in_termux() -> bool:
    """Return whether this is Termux itself."""
    return "com.termux" in os.environ.get("PREFIX", "")


def brief(path: Path) -> str:
    """Return a path with ``~`` or ``$PREFIX``."""
    bases = {}
    if in_termux():
        bases["$PREFIX"] = os.environ["PREFIX"]
    bases["~"] = str(Path.home())
    for name, base in bases.items():
        if path.is_relative_to(base):
            return f"{name}/{shlex.quote(str(path.relative_to(base)))}"
    return shlex.quote(str(path))


def start_lines(folder: Path | None) -> Sequence[str]:
    """Return shell lines that start the server."""
    # The script survives an upgrade of Python, the interpreter's own path doesn't.
    program = Path(sys.argv[0]).absolute()
    words = [str(program)]
    if program.name != APP_NAME:
        words = [sys.executable, "-m", APP_NAME]
    words += SERVE
    if folder:
        words.append(str(folder))
    return (
        f"settings={SETTINGS_FILE}",
        'if [ -f "$settings" ]; then . "$settings"; fi',
        f"exec {shlex.join(words)}",
    )


def _script(*lines: str) -> str:
    shell = "/bin/sh"
    if in_termux():
        shell = f"{os.environ['PREFIX']}/bin/sh"
    return "\n".join((f"#!{shell}", MARKER, *lines)) + "\n"


def _wake_lock() -> Sequence[str]:
    """Return the line that keeps a phone awake."""
    if in_termux():
        return ("termux-wake-lock",)
    return ()


def _unit_word(text: str) -> str:
    """Quote a word of a unit's command line.

    Systemd has C escapes, ``%`` for specifiers and ``$`` for variables.
    """
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "%": "%%", "$": "$$"}
    for character, escape in escapes.items():
        text = text.replace(character, escape)
    return f'"{text}"'


def _ask(*command: str, timeout: float = ANSWER_TIMEOUT_S) -> Outcome:
    return run_program(command, timeout)
