"""Tests of ``pocketserve service`` with fake runit, Termux:Boot and systemd programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pocketserve.cli import main
from pocketserve.cli.running import supervisors

STAND_INS = {
    "sv": 'case $1 in status) [ -e "$2/down" ] && echo "down: $2: 1s" || echo "run: $2: (pid 7) 3s";; esac',
    "systemctl": """
case "$2" in
    enable) touch "$HOME/enabled";; disable) rm -f "$HOME/enabled";;
    is-enabled | is-active) [ -e "$HOME/enabled" ];;
    show-environment) [ -z "$NO_MANAGER" ];;
esac""",
}


class Machine:
    """A home folder with fake programs on its search path.

    ``calls`` lists their runs.
    """

    def __init__(
        self,
        base: Path,
        monkeypatch: pytest.MonkeyPatch,
        programs: tuple[str, ...],
        *,
        termux: bool,
    ) -> None:
        self.home = base / "home"
        self.prefix = base / "com.termux/files/usr"
        self.home.mkdir()
        programs_dir = base / "bin"
        programs_dir.mkdir()
        for name in programs:
            script = f'#!/bin/sh\necho "{name} $*" >> {base}/calls\n{STAND_INS.get(name, "")}\n'
            (programs_dir / name).write_text(script)
            (programs_dir / name).chmod(0o755)
        for variable in (
            "SVDIR",
            "LOGDIR",
            "PREFIX",
            "XDG_CONFIG_HOME",
            "XDG_STATE_HOME",
            "NO_MANAGER",
        ):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setenv("PATH", f"{programs_dir}:/usr/bin:/bin")
        monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(base / "state"))
        if termux:
            monkeypatch.setenv("PREFIX", str(self.prefix))
            (self.prefix / "var/service").mkdir(parents=True)
        self._calls = base / "calls"

    @property
    def calls(self) -> list[str]:
        if self._calls.exists():
            return self._calls.read_text().splitlines()
        return []

    def files(self) -> dict[str, str]:
        found = [
            path
            for base in (self.home, self.prefix)
            for path in base.rglob("*")
            if path.is_file()
        ]
        return {
            path.name if path.name != "run" else str(path)[-7:]: path.read_text()
            for path in found
        }


@pytest.fixture
def termux(tmp_path, monkeypatch) -> Machine:
    return Machine(
        tmp_path, monkeypatch, ("sv", "sv-enable", "termux-wake-lock"), termux=True
    )


@pytest.fixture
def desktop(tmp_path, monkeypatch) -> Machine:
    return Machine(tmp_path, monkeypatch, ("systemctl",), termux=False)


def test_install_run_and_remove_with_runit(termux, capsys) -> None:
    assert main(["service", "install"]) == 0
    printed = capsys.readouterr().out
    assert "wrote $PREFIX/var/service/pocketserve/run\n" in printed
    assert "sv-enable pocketserve" in printed
    assert "$PREFIX/var/log/sv/pocketserve/current" in printed
    service = termux.prefix / "var/service/pocketserve"
    assert (service / "down").exists()  # its supervisor would start it at once
    assert os.access(service / "run", os.X_OK)
    assert os.access(service / "log/run", os.X_OK)
    assert main(["service", "status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"kind": "runit", "installed": True, "enabled": False, "running": False}
    ]
    (service / "down").unlink()
    # A running service is not marked as down.
    assert main(["service", "install"]) == 0 and not (service / "down").exists()
    assert main(["service", "status"]) == 0
    *_, state, _, log = capsys.readouterr().out.splitlines()
    assert state.split() == ["runit", "yes", "yes", "yes"]
    assert log == "its log (runit): tail -f $PREFIX/var/log/sv/pocketserve/current"
    (service / "supervise").mkdir()
    assert main(["service", "remove"]) == 0
    assert f"sv -w 70 force-shutdown {service}" in termux.calls
    assert not service.exists()
    assert main(["service", "status"]) == main(["service", "remove"]) == 1
    assert (
        "no service is installed; `pocketserve service install` installs one"
        in capsys.readouterr().err
    )


def test_the_boot_script_reads_settings_and_leaves_the_server_to_runit(
    termux, tmp_path, capsys
) -> None:
    settings = termux.home / ".config/pocketserve/environment"
    settings.parent.mkdir(parents=True)
    settings.write_text("export FROM=settings\n")
    (termux.prefix / "etc").mkdir()
    (termux.prefix / "etc/profile").write_text(f"echo profile >> {tmp_path}/calls\n")
    (models := tmp_path / "my models").mkdir()
    assert main(["service", "install", "--kind", "boot", str(models)]) == 0
    script = termux.home / ".termux/boot/pocketserve"
    text = script.read_text()
    server = re.sub(
        r"exec \S.* serve",
        f"exec sh -c 'echo \"$FROM $*\" >> {tmp_path}/calls' serve",
        text,
    )
    script.write_text(server)
    subprocess.run(["sh", str(script)], check=True, timeout=60)
    assert termux.calls[-2:] == [
        "termux-wake-lock ",
        f"settings --port-wait 60 {models}",
    ]
    assert main(["service", "install", "--kind", "runit"]) == 0
    (termux.prefix / "var/service/pocketserve/down").unlink()
    subprocess.run(["sh", str(script)], check=True, timeout=60)
    assert termux.calls[-1] == "profile"
    capsys.readouterr()
    assert main(["service", "status"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]] == [
        "runit",
        "boot",
    ]


def test_install_a_systemd_unit(desktop, tmp_path, capsys) -> None:
    (models := tmp_path / '100% "mine" $HOME').mkdir()
    assert main(["service", "install", str(models)]) == 0
    assert "systemctl --user enable --now pocketserve" in capsys.readouterr().out
    unit = desktop.home / ".config/systemd/user/pocketserve.service"
    (line,) = (
        line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")
    )
    assert str(models).replace('"', '\\"').replace("%", "%%").replace("$", "$$") in line
    assert "systemctl --user daemon-reload" in desktop.calls
    subprocess.run(["systemctl", "--user", "enable"], check=True, timeout=60)
    assert main(["service", "status"]) == 0
    assert main(["service", "remove"]) == 0
    assert "systemctl --user disable --now pocketserve" in desktop.calls
    assert not unit.exists()


def test_a_system_without_a_service_manager_is_reported(
    desktop, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("NO_MANAGER", "1")
    assert main(["service", "install"]) == 1
    assert "--kind runit|boot|systemd" in capsys.readouterr().err
    assert main(["service", "install", "--kind", "runit"]) == 0
    assert (
        "rm -f ~/service/pocketserve/down; sv up ~/service/pocketserve"
        in capsys.readouterr().out
    )


def test_a_missing_folder_is_rejected(desktop, capsys) -> None:
    assert main(["service", "install", "nowhere"]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err
    assert not desktop.files()


@pytest.mark.parametrize("link", [False, True], ids=["file", "link"])
def test_unrelated_files_are_kept(termux, tmp_path, capsys, link) -> None:
    run = termux.prefix / "var/service/pocketserve/run"
    run.parent.mkdir()
    (other := tmp_path / "other").write_text(
        f"{supervisors.MARKER}\n" if link else "#!/bin/sh\n"
    )
    if link:
        run.symlink_to(other)
    else:
        shutil.copy(other, run)
    assert main(["service", "install"]) == 1
    assert f"{run} was not written by this command and stays" in capsys.readouterr().err
    assert main(["service", "remove"]) == 1
    assert run.read_text() == other.read_text()
    assert run.is_symlink() == link
    assert not (run.parent / "log").exists()
    assert not (run.parent / "down").exists()
    run.unlink()
    (run.parent / "mine").write_text("notes")
    assert main(["service", "install"]) == main(["service", "remove"]) == 0
    assert [path.name for path in run.parent.iterdir()] == ["mine"]


@pytest.mark.parametrize("kind", ["runit", "boot", "systemd"])
def test_a_dry_run_prints_the_files(termux, capsys, kind) -> None:
    assert main(["service", "install", "--dry-run", "--kind", kind]) == 0
    printed = capsys.readouterr().out
    assert not termux.files()
    assert main(["service", "install", "--kind", kind]) == 0
    texts = termux.files()
    assert printed == "".join(
        f"==> {path} <==\n{path.read_text()}\n" for path in _written(kind)
    )
    shell = f"#!{termux.prefix}/bin/sh\n"
    for text in texts.values():
        if kind != "systemd" and text:
            # Commands that apps start may lack termux-exec, so nothing relies on /bin.
            assert text.startswith(shell)
            subprocess.run(
                ["sh", "-n"],
                input=text,
                text=True,
                check=True,
                timeout=60,
            )


def _written(kind: str) -> list[Path]:
    return [
        path
        for each in supervisors.SUPERVISORS
        if each.kind == kind
        for path in each.files(None)
    ]
