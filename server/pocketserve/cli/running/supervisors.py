"""The supervisors that keep a server running: runit, Termux:Boot, and systemd's user manager."""

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

MARKER = "# Written by `pocketserve service install`, which replaces it; `pocketserve service remove` removes it."
SETTINGS_FILE = "$HOME/.config/pocketserve/environment"
# Another app may have had the ports while the server was dead: who waits for them is back at once.
SERVE = ("serve", "--port-wait", "60")
ANSWER_TIMEOUT_S = 10.0
END_TIMEOUT_S = 75.0  # longer than a server may drain


class Supervisor:
    """A kind of service, as the command sees it.

    Attributes:
        kind: its name on the command line.
        notes: what people must know before the first start.
    """

    kind: str
    notes: tuple[str, ...] = ()

    def is_here(self) -> bool:
        """Return whether this machine has it."""
        raise NotImplementedError

    def files(self, folder: Path | None) -> dict[Path, str]:
        """Return path -> text, the server's script last; ``folder`` is what it serves, None leaves that to settings."""
        raise NotImplementedError

    def commands(self) -> list[tuple[str, str]]:
        """Return what people may want -> the command for it."""
        raise NotImplementedError

    def is_enabled(self) -> bool:
        """Return whether it starts the server by itself."""
        raise NotImplementedError

    def is_running(self) -> bool:
        """Return whether the server runs now."""
        raise NotImplementedError

    def before_install(self) -> None:
        """Prepare for files that are about to be written; nothing starts by being written."""

    def after_change(self) -> None:
        """Have the files read again."""

    def end(self) -> None:
        """End the server that it started, and do not start it again."""

    def clear(self) -> None:
        """Remove what it put beside files that are removed now."""


class Runit(Supervisor):
    """A folder of runit's, which termux-services watches in Termux."""

    kind = "runit"

    notes = (
        "A running supervisor needs five seconds to see a new service.",
        "In Termux, close it and open it again if termux-services is new: that starts its supervisor.",
        "It starts again whatever ends, also after `pocketserve stop`.",
    )

    @property
    def folder(self) -> Path:
        """Return the service's folder."""
        usual = (
            f"{os.environ['PREFIX']}/var/service"
            if in_termux()
            else Path.home() / "service"
        )
        return Path(os.environ.get("SVDIR") or usual) / APP_NAME

    @property
    def log(self) -> Path:
        """Return the folder of the log: in Termux, where its other services have theirs."""
        if in_termux():
            return (
                Path(os.environ.get("LOGDIR") or f"{os.environ['PREFIX']}/var/log")
                / "sv"
                / APP_NAME
            )
        return default_state_dir() / "log"

    def is_here(self) -> bool:
        """Return whether services can be controlled and a folder of them is there."""
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
        """Return those of termux-services, or of plain runit."""
        folder, short = self.folder, shutil.which("sv-enable") is not None
        name = brief(folder)
        return [
            (
                "start",
                f"sv-enable {APP_NAME}"
                if short
                else f"rm -f {name}/down; sv up {name}",
            ),
            (
                "stop",
                f"sv-disable {APP_NAME}"
                if short
                else f"touch {name}/down; sv down {name}",
            ),
            ("read the log", f"tail -f {brief(self.log / 'current')}"),
        ]

    def is_enabled(self) -> bool:
        """Return whether the file that holds it down is not there."""
        return not (self.folder / "down").exists()

    def is_running(self) -> bool:
        """Return what ``sv status`` says."""
        return _ask("sv", "status", str(self.folder)).output.startswith("run:")

    def before_install(self) -> None:
        """Hold a new service down: its supervisor would start it within seconds."""
        if not (self.folder / "run").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "down").touch()

    def end(self) -> None:
        """End the server and what supervises it."""
        (self.folder / "down").touch()
        _ask(
            "sv", "-w", "70", "force-shutdown", str(self.folder), timeout=END_TIMEOUT_S
        )

    def clear(self) -> None:
        """Remove the folder, unless somebody put more into it."""
        (self.folder / "down").unlink(missing_ok=True)
        for folder in (self.folder / "log", self.folder):
            shutil.rmtree(folder / "supervise", ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()


class TermuxBoot(Supervisor):
    """A script that the app Termux:Boot runs when the phone has started."""

    kind = "boot"
    notes = (
        "Open the Termux:Boot app once; without that, Android does not start it.",
        "Only the start of the phone starts the server; nothing starts it again after its end.",
    )

    def is_here(self) -> bool:
        """Return whether this is Termux: whether the app is there, no program can see."""
        return in_termux()

    def files(self, folder: Path | None) -> dict[Path, str]:
        """Return the script. It leaves the server to termux-services where these start it."""
        run, down = (
            shlex.quote(str(Runit().folder / name)) for name in ("run", "down")
        )
        log = shlex.quote(str(self._log))
        return {
            Path.home() / ".termux/boot" / APP_NAME: _script(
                *_wake_lock(),
                f"if [ -e {run} ] && [ ! -e {down} ]; then",
                "    # Its supervisor starts it; the profile starts the supervisor.",
                '    . "$PREFIX/etc/profile"',
                "    exit",
                "fi",
                f"mkdir -p {shlex.quote(str(self._log.parent))}",
                f"exec >>{log} 2>&1",
                *start_lines(folder),
            )
        }

    @property
    def _log(self) -> Path:
        return default_state_dir() / "boot.log"

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands for a server that no supervisor has."""
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
        """Return whether any server of this user runs: who started it is not noted."""
        return bool(running_servers(load_config({}).state_dir))


class Systemd(Supervisor):
    """A unit of the user's own manager of systemd."""

    kind = "systemd"
    notes = (
        "It runs while you are logged in; `loginctl enable-linger` has it run from the machine's start on.",
    )

    def is_here(self) -> bool:
        """Return whether the user's manager answers."""
        return _ask("systemctl", "--user", "show-environment").code == 0

    def files(self, folder: Path | None) -> dict[Path, str]:
        """Return the unit. Sandboxing beyond this needs user namespaces, which many systems forbid."""
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
        """Return those of systemd."""
        return [
            ("start", f"systemctl --user enable --now {APP_NAME}"),
            ("stop", f"systemctl --user disable --now {APP_NAME}"),
            ("read the log", f"journalctl --user -u {APP_NAME} -f"),
        ]

    def is_enabled(self) -> bool:
        """Return what the manager says."""
        return _ask("systemctl", "--user", "is-enabled", APP_NAME).code == 0

    def is_running(self) -> bool:
        """Return what the manager says."""
        return _ask("systemctl", "--user", "is-active", APP_NAME).code == 0

    def after_change(self) -> None:
        """Have the manager read its units again."""
        _ask("systemctl", "--user", "daemon-reload")

    def end(self) -> None:
        """Stop and disable the unit."""
        _ask("systemctl", "--user", "disable", "--now", APP_NAME, timeout=END_TIMEOUT_S)


SUPERVISORS: tuple[Supervisor, ...] = (Runit(), TermuxBoot(), Systemd())
"""The first one that a machine has is the one for it."""


def in_termux() -> bool:
    """Return whether this is Termux itself."""
    return "com.termux" in os.environ.get("PREFIX", "")


def brief(path: Path) -> str:
    """Return a path for a shell and for people: with ``~``, and in Termux with ``$PREFIX``."""
    bases = {"$PREFIX": os.environ["PREFIX"]} if in_termux() else {}
    for name, base in {**bases, "~": str(Path.home())}.items():
        if path.is_relative_to(base):
            return f"{name}/{shlex.quote(str(path.relative_to(base)))}"
    return shlex.quote(str(path))


def start_lines(folder: Path | None) -> Sequence[str]:
    """Return the lines of a shell that read the user's settings and become the server."""
    program = (
        Path(sys.argv[0]).absolute()
    )  # survives an upgrade of Python, as the interpreter's own path does not
    own = (
        [str(program)] if program.name == APP_NAME else [sys.executable, "-m", APP_NAME]
    )
    return (
        f"settings={SETTINGS_FILE}",
        'if [ -f "$settings" ]; then . "$settings"; fi',
        f"exec {shlex.join([*own, *SERVE, *([str(folder)] if folder else [])])}",
    )


def _script(*lines: str) -> str:
    shell = f"{os.environ['PREFIX']}/bin/sh" if in_termux() else "/bin/sh"
    return "\n".join((f"#!{shell}", MARKER, *lines)) + "\n"


def _wake_lock() -> Sequence[str]:
    """Return the line that keeps a phone awake."""
    return ("termux-wake-lock",) if in_termux() else ()


def _unit_word(text: str) -> str:
    """Return one word of a unit's command line: systemd has escapes of C, ``%`` for names and ``$`` for variables."""
    for char, escape in {
        "\\": "\\\\",
        '"': '\\"',
        "\n": "\\n",
        "%": "%%",
        "$": "$$",
    }.items():
        text = text.replace(char, escape)
    return f'"{text}"'


def _ask(*command: str, timeout: float = ANSWER_TIMEOUT_S) -> Outcome:
    return run_program(command, timeout)
