"""Run every command of docs/termux.md in order, in an imitation of Termux."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from conftest import MODELS, ROOT, START_TIMEOUT_S
from ports import free_port

DOCUMENT = ROOT / "docs" / "termux.md"
INSTALLER = ROOT / "install-termux.sh"
SHEBANG = "#!/data/data/com.termux/files/usr/bin/sh\n"
TIMEOUT_S = 240

LOOK_ALIKE = '''
"""Makes this Python behave like Termux's: another platform, and what Android refuses."""
import os, sys
installing = any("pip" in word for word in sys.orig_argv)  # pip would look for Android's wheels
if not installing:
    sys.platform = "android"
own = os.environ["LOOK_ALIKE_BASE"] + os.sep
def refuse(event, arguments):
    if event in ("open", "os.mkdir", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
        if arguments[0].startswith("/tmp") and not (arguments[0] + os.sep).startswith(own) and not installing:
            raise FileNotFoundError(2, "there is no /tmp in Termux", arguments[0])
        if arguments[0] in ("/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version"):
            raise PermissionError(13, "Android hides this", arguments[0])
    if event == "socket.bind" and isinstance(arguments[1], tuple) and 0 < arguments[1][1] < 1024:
        raise PermissionError(13, "Android has no privileged ports")
sys.addaudithook(refuse)
'''

PROVIDES = {
    "python-numpy": ("numpy",),
    "python-pillow": ("pillow",),
    "python-tflite-runtime": ("tflite-runtime", "ai-edge-litert"),
}
"""Termux package -> substitutes in the test environment; the first available one
counts.
"""


def blocks(language: str) -> list[str]:
    """Return the code of the page's blocks of a language, in order."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```sh {language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@dataclass
class Termux:
    """A folder with Termux's layout.

    Attributes:
        calls: file to which the stand-ins write their calls.
    """

    base: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in (
            self.home,
            self.prefix / "tmp",
            self.prefix / "etc",
            self.prefix / "var/service",
            self.store,
        ):
            folder.mkdir(parents=True)
        venv.create(self.prefix, with_pip=True)
        self.site = next((self.prefix / "lib").glob("python3.*/site-packages"))
        (self.site / "sitecustomize.py").write_text(LOOK_ALIKE)
        for name in (
            "sh",
            "id",
            "dirname",
            "mkdir",
            "cp",
            "chmod",
            "ln",
            "touch",
            "cat",
            "echo",
            "env",
            "sleep",
        ):
            (self.bin / name).symlink_to(shutil.which(name) or name)
        (self.prefix / "etc/profile").write_text(
            'echo "profile" >> "$LOOK_ALIKE_CALLS"\n'
        )
        for name in (
            "termux-wake-lock",
            "termux-reload-settings",
            "adb",
            "proot-distro",
            "apt-get",
        ):
            self.stand_in(name, "")
        self.stand_in("getprop", "echo 34")
        self.stand_in("sv", 'echo "run: $2: (pid 2) 5s"')
        self.stand_in("sv-enable", 'rm -f "$PREFIX/var/service/$1/down"')
        (self.bin / "rm").symlink_to(shutil.which("rm") or "rm")
        self.stand_in("git", f'mkdir -p "$3" && cp -R {self._clone_from()} "$3"')
        self.stand_in("pkg", f'exec "$PREFIX/bin/python" {self.base / "pkg.py"} "$@"')
        (self.base / "pkg.py").write_text(PKG)
        for package, candidates in PROVIDES.items():
            (self.store / package).write_text("\n".join(self._files_of(candidates)))

    @property
    def prefix(self) -> Path:
        return self.base / "data/data/com.termux/files/usr"

    @property
    def home(self) -> Path:
        return self.base / "data/data/com.termux/files/home"

    @property
    def bin(self) -> Path:
        return self.prefix / "bin"

    @property
    def store(self) -> Path:
        return self.base / "repository"

    @property
    def calls(self) -> list[str]:
        path = self.base / "calls"
        if path.exists():
            return path.read_text().splitlines()
        return []

    def stand_in(self, name: str, script: str) -> None:
        """Write a program that records its call."""
        path = self.bin / name
        path.write_text(
            f'#!{self.bin}/sh\necho "{name} $*" >> "$LOOK_ALIKE_CALLS"\n{script}\n'
        )
        path.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """Return TermuxShellEnvironment's variables, and this machine's package index."""
        kept = {}
        for name, value in os.environ.items():
            if name.lower().endswith("_proxy") or "CERT" in name:
                kept[name] = value
        kept |= {
            name: value for name, value in os.environ.items() if name.startswith("PIP_")
        }
        configuration = Path.home() / ".config/pip/pip.conf"
        if configuration.exists():
            kept.setdefault("PIP_CONFIG_FILE", str(configuration))
        return {
            **kept,
            "PATH": str(self.bin),
            "PREFIX": str(self.prefix),
            "HOME": str(self.home),
            "TMPDIR": str(self.prefix / "tmp"),
            "LANG": "en_US.UTF-8",
            "TERMUX_VERSION": "0.118.3",
            "LOOK_ALIKE_BASE": str(self.base),
            "LOOK_ALIKE_CALLS": str(self.base / "calls"),
            "POCKETSERVE_ALLOW_ROOT": "1",
            **self.variables,
        }

    def run(self, code: str, folder: Path | None = None) -> str:
        """Run commands as a session would; return their output."""
        done = subprocess.run(
            [
                str(self.bin / "sh"),
                "-eu",
                "-c",
                code.replace("THIS-REPOSITORY", "file:///repository"),
            ],
            cwd=folder or self.home,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def server(self, code: str) -> Iterator[None]:
        """Run commands that start a server until the block ends."""
        ready = self.base / "ready.json"
        self.variables["POCKETSERVE_READY_FILE"] = str(ready)
        log = self.base / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(self.bin / "sh"), "-eu", "-c", code],
                cwd=self.home / "pocketserve",
                env=self.environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not ready.exists():
                assert process.poll() is None and time.monotonic() < deadline, (
                    log.read_text()
                )
                try:
                    process.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue
            yield
            os.kill(json.loads(ready.read_text())["pid"], signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(120)

    @staticmethod
    def _clone_from() -> str:
        names = (
            "server",
            "client",
            "lab",
            "models",
            "docs",
            "install-termux.sh",
            "pyproject.toml",
        )
        return " ".join(str(ROOT / name) for name in (*names, "README.md", "LICENSE"))

    @staticmethod
    def _files_of(candidates: tuple[str, ...]) -> set[str]:
        """Return top folders and files of an installed package and its requirements."""
        wanted = [next(name for name in candidates if _is_installed(name))]
        files: set[str] = set()
        for name in wanted:
            distribution = importlib.metadata.distribution(name)
            root = Path(str(distribution.locate_file("")))
            for path in distribution.files or ():
                top = path.parts[0]
                if top not in ("..", "__pycache__"):
                    files.add(str(root / top))
            for text in distribution.requires or ():
                requirement = Requirement(text)
                if (
                    requirement.marker is None
                    or requirement.marker.evaluate({"extra": ""})
                ) and _is_installed(requirement.name):
                    wanted += (
                        [requirement.name] if requirement.name not in wanted else []
                    )
        return files


PKG = '''
"""Stands in for pkg: links what a package holds into the prefix."""
import os, pathlib, sys
base = pathlib.Path(os.environ["LOOK_ALIKE_BASE"])
site = pathlib.Path(next(entry for entry in sys.path if "site-packages" in entry))
if sys.argv[1] == "install":
    for package in (word for word in sys.argv[2:] if not word.startswith("-")):
        listing = base / "repository" / package
        for file in listing.read_text().splitlines() if listing.exists() else ():
            target = site / pathlib.Path(file).name
            if not target.exists():
                target.symlink_to(file)
'''


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture
def termux(tmp_path) -> Termux:
    port = free_port()
    return Termux(
        tmp_path,
        {
            "POCKETSERVE_HTTP_PORT": str(port),
            "POCKETSERVE_SOCKET_PORT": str(free_port()),
            "POCKETSERVE_URL": f"http://127.0.0.1:{port}",
        },
    )


def reads_the_seven(printed: str) -> bool:
    """Return whether ``predict`` named the digit first."""
    rows = [line.split() for line in printed.splitlines()]
    return ["LABEL", "SCORE"] in rows and rows[rows.index(["LABEL", "SCORE"]) + 1][
        0
    ] == "7"


ASK = "pocketserve predict digits models/digits/samples/7.png"


@pytest.mark.wheel
@pytest.mark.live
def test_every_command_of_the_page_works(termux: Termux) -> None:
    """They lead from an empty Termux to digits, at boot, as a service, and after an
    upgrade.
    """
    native = blocks("termux")
    (background,) = blocks("termux background")
    clone = termux.home / "pocketserve"
    asked = 0
    for code in native:
        if "cd ~/pocketserve" in code:
            with termux.server(background):
                assert reads_the_seven(termux.run(code, clone))
                asked += 1
        else:
            termux.run(code, clone if clone.exists() else None)
    assert asked == 1
    calls = termux.calls
    for expected in (
        "pkg update -y",
        "pkg upgrade -y",
        "sv-enable pocketserve",
        "termux-reload-settings ",
    ):
        assert expected in calls
    assert not list(Path(termux.prefix, "tmp").glob("pocketserve*"))
    _check_autostart(termux, clone)
    for code in blocks("computer"):
        termux.run(code)
    assert any(
        call.startswith("adb shell settings put global") for call in termux.calls
    )


def test_a_clone_from_one_file_needs_no_network(tmp_path: Path) -> None:
    """It has the branch and all files."""
    source = tmp_path / "source"
    downloads = tmp_path / "storage" / "downloads"
    source.mkdir()
    downloads.mkdir(parents=True)
    (source / "install-termux.sh").write_text("echo\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        [*identity, "commit", "-q", "-m", "First"],
    ):
        subprocess.run(["git", *words], cwd=source, check=True, timeout=TIMEOUT_S)
    make, clone = blocks("bundle")
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run(
        ["sh", "-euc", make], cwd=source, env=environment, check=True, timeout=TIMEOUT_S
    )
    shutil.move(source / "pocketserve.bundle", downloads)
    subprocess.run(
        ["sh", "-euc", clone],
        cwd=tmp_path,
        env=environment,
        check=True,
        timeout=TIMEOUT_S,
    )
    assert (tmp_path / "pocketserve" / "install-termux.sh").exists()
    branch = subprocess.check_output(
        ["git", "branch", "--show-current"], cwd=tmp_path / "pocketserve", text=True
    )
    assert branch == "main\n"


def test_the_readme_starts_with_tested_commands() -> None:
    """Its blocks have only commands of the page whose blocks are run above."""
    page = [*blocks("termux"), *blocks("termux background"), *blocks("bundle")]
    tested = set("\n".join(page).splitlines())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    starts = re.findall(
        r"^```sh (?:bundle|start)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL
    )
    commands = "\n".join(starts).replace(" && ", "\n").splitlines()
    assert "sh install-termux.sh" in commands
    assert set(commands) <= tested


def _check_autostart(termux: Termux, clone: Path) -> None:
    """Check that boot script and service serve the settings file's models."""
    boot = termux.home / ".termux/boot/pocketserve"
    service = termux.prefix / "var/service/pocketserve"
    assert os.access(boot, os.X_OK)
    assert os.access(service / "run", os.X_OK)
    assert os.access(service / "log/run", os.X_OK)
    assert not (service / "down").exists()
    before = termux.calls.count("termux-wake-lock ")
    with termux.server(f"sh {service}/run"):
        assert reads_the_seven(termux.run(ASK, clone))
        models = json.loads((termux.base / "ready.json").read_text())["models_dir"]
        assert models == str(termux.home / "models")
    termux.run(f"sh {boot}")
    # The service is enabled, and its supervisor starts it.
    assert "profile" in termux.calls
    shutil.rmtree(service)
    with termux.server(f"sh {boot}"):
        assert reads_the_seven(termux.run(ASK, clone))
    assert termux.calls.count("termux-wake-lock ") == before + 3
    assert (termux.home / ".local/state/pocketserve/boot.log").exists()


@pytest.mark.wheel
@pytest.mark.live
def test_the_linux_distributions_commands_work(termux: Termux, tmp_path: Path) -> None:
    """They use the distribution's plain Linux Python."""
    (code,) = blocks("debian")
    termux.stand_in("python3", f'exec {sys.executable} "$@"')
    for name in ("PREFIX", "TERMUX_VERSION"):
        termux.variables[name] = ""
    printed = termux.run(code)
    assert reads_the_seven(printed)
    assert "Python 3" in printed


def test_every_block_of_the_page_is_tested() -> None:
    languages = re.findall(
        r"^```(\S[^\n]*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(languages) == {
        "sh termux",
        "sh termux background",
        "sh computer",
        "sh debian",
        "sh bundle",
    }


def test_the_installer_names_termux_shell_and_is_well_formed() -> None:
    """Commands that apps start may lack termux-exec, so scripts can't use /bin or env."""
    text = INSTALLER.read_text(encoding="utf-8")
    assert text.startswith(SHEBANG)
    assert os.access(INSTALLER, os.X_OK)
    subprocess.run(["sh", "-n", str(INSTALLER)], check=True, timeout=60)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, "--shell=sh", str(INSTALLER)], check=True, timeout=60)
    assert not re.search(r"(?<!PREFIX)/(tmp|usr/bin|bin)/", text.removeprefix(SHEBANG))


@pytest.mark.parametrize(
    ("variables", "words", "code", "said"),
    [
        ({"PREFIX": "/usr"}, [], 1, "this is not Termux"),
        ({}, ["--unknown"], 2, "usage"),
        ({"PREFIX": "/data/data/com.termux/files/usr"}, ["--x"], 2, "usage"),
    ],
)
def test_the_installer_refuses_with_a_sentence(variables, words, code, said) -> None:
    command = ["sh", str(INSTALLER), *words]
    environment = {"PATH": os.environ["PATH"], **variables}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert said in done.stderr


def test_samples_are_where_the_page_expects_them() -> None:
    assert (MODELS / "digits/samples/7.png").is_file()
