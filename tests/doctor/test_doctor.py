"""Find each planted problem, and name the remedy."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

from pocketserve.doctor.checkup import run_checks
from pocketserve.doctor.finding import Finding, Level, ok
from pocketserve.doctor.packages import _hugging_face, check_packages, try_imports
from pocketserve.doctor.server import check_server
from pocketserve.doctor.settings import read_settings
from pocketserve.repository.files import HASH_VERSION
from pocketserve.state.run_lock import KILLED_FILE, RunLock

HANG = "import threading\nthreading.Event().wait(60)"


def plant_verdict(phone):
    """Put a file into quarantine, as a failed trial does."""
    from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
    from pocketserve.repository.scan import scan

    model = scan(phone.models)["free"]
    key = Quarantine(phone.state, TrialLimits()).key(model, model.versions["tflite"])
    phone.file(
        "home/state/verdicts.json",
        json.dumps(
            {
                key: {
                    "ok": False,
                    "reason": "it crashed its framework",
                    "version": HASH_VERSION,
                }
            }
        ),
    )


def plant_killed(phone, boot="this"):
    """Record that a server was killed an hour ago."""
    phone.file("root/proc/sys/kernel/random/boot_id", "this\n")
    run = {
        "pid": 4711,
        "started": 1_790_000_000.0 - 3600,
        "suspended": 0.0,
        "boot": boot,
        "ports": [8470],
    }
    phone.file("home/state/runs/4711.json", json.dumps(run))


def plant_background(phone):
    phone.changes["cores"] = range(4)


def plant_old_site(phone):
    phone.file("usr/lib/python3.13/site-packages/flask-3.1.3.dist-info/METADATA", "")
    phone.file(
        "usr/lib/python3.13/site-packages/pocketserve-0.1.0.dist-info/METADATA", ""
    )


def plant_token(phone, text="x" * 43, mode=0o600):
    phone.file("home/token", text).chmod(mode)


def plant_shared_token(phone):
    token = phone.file("root/storage/emulated/0/token", "x" * 43)
    phone.environ["POCKETSERVE_TOKEN_FILE"] = str(token)


def plant_shared_models(phone):
    model = phone.file("root/storage/emulated/0/models/free.tflite", "")
    phone.environ["POCKETSERVE_MODELS_DIR"] = str(model.parent)


def plant_processes(phone):
    for pid in range(100, 120):
        phone.file(f"root/proc/{pid}/stat", "")


def variable(name, value):
    return lambda phone: phone.environ.__setitem__(f"POCKETSERVE_{name}", value)


def change(name, value):
    return lambda phone: phone.changes.__setitem__(name, value)


PROBLEMS = {
    "old Python": (
        change("python", (3, 10)),
        "problem",
        "3.10 is too old",
        "pkg upgrade python",
    ),
    "32 bit": (change("wide", False), "warning", "32-bit", "64-bit device"),
    "Play Store": (
        lambda p: p.environ.update(TERMUX_APK_RELEASE="GOOGLE_PLAY_STORE"),
        "warning",
        "Google Play's Termux",
        "F-Droid",
    ),
    "Python upgraded": (
        plant_old_site,
        "problem",
        "flask, pocketserve stayed behind",
        "sh install-termux.sh",
    ),
    "no Flask": (
        lambda p: p.without("flask"),
        "problem",
        "flask is missing",
        "pip install flask",
    ),
    "no NumPy": (
        lambda p: p.without("numpy"),
        "problem",
        "numpy is missing",
        "pkg install python-numpy",
    ),
    "NumPy raises": (
        lambda p: (
            p.without("numpy"),
            p.package("numpy", "raise ImportError('libopenblas.so')"),
        ),
        "problem",
        "ImportError: libopenblas.so",
        "pkg upgrade && pkg reinstall python-numpy",
    ),
    "no Pillow": (
        lambda p: p.without("PIL"),
        "warning",
        "Pillow is missing",
        "pkg install python-pillow",
    ),
    "Pillow broken": (
        lambda p: p.package("PIL", "raise ImportError('libjpeg.so')"),
        "problem",
        "Pillow is installed but broken",
        "pkg reinstall python-pillow",
    ),
    "no runtime": (
        lambda p: p.without("tflite_runtime"),
        "problem",
        "no runtime is installed",
        "pkg install python-tflite-runtime",
    ),
    "runtime raises OSError": (
        lambda p: p.package(
            "torch", "raise OSError('libandroid-execinfo.so not found')"
        ),
        "problem",
        "OSError: libandroid-execinfo.so not found",
        "pkg reinstall python-torch",
    ),
    "runtime raises ImportError": (
        lambda p: p.package("onnxruntime", "import onnxruntime.capi.missing"),
        "problem",
        "onnxruntime is installed but broken: ModuleNotFoundError",
        "pkg reinstall python-onnxruntime",
    ),
    "runtime ends the process": (
        lambda p: p.package("torch", "import os; os._exit(3)"),
        "problem",
        "ends the process (exit code 3)",
        "pkg reinstall python-torch",
    ),
    "runtime kills the process": (
        lambda p: p.package(
            "torch", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
        ),
        "problem",
        "kills the process (SIGILL)",
        "pkg upgrade",
    ),
    "setting wrong": (
        variable("QUEUE_LIMIT", "many"),
        "problem",
        "QUEUE_LIMIT",
        "unset POCKETSERVE_QUEUE_LIMIT",
    ),
    "setting out of range": (
        variable("QUEUE_LIMIT", "0"),
        "problem",
        "queue_limit",
        "unset POCKETSERVE_QUEUE_LIMIT",
    ),
    "state folder unwritable": (
        lambda p: p.environ.update(
            POCKETSERVE_STATE_DIR=str(p.file("home/file", "") / "state")
        ),
        "warning",
        "cannot be written",
        "POCKETSERVE_STATE_DIR",
    ),
    "setting misspelt": (
        variable("QUEUE_LIMT", "4"),
        "warning",
        "QUEUE_LIMT is not a setting",
        "perhaps POCKETSERVE_QUEUE_LIMIT is meant",
    ),
    "models folder missing": (
        variable("MODELS_DIR", "/nowhere/at/all"),
        "problem",
        "cannot be read",
        "mkdir -p",
    ),
    "models folder empty": (
        lambda p: (p.models / "free.tflite").unlink(),
        "warning",
        "is empty",
        "cp MODEL.tflite",
    ),
    "models in shared storage": (
        plant_shared_models,
        "warning",
        "other apps can change the models",
        "cp -r",
    ),
    "manifest broken": (
        lambda p: p.file("home/models/bad/model.toml", "task = 7\n"),
        "problem",
        "bad has a fault: bad/model.toml",
        "bad/model.toml",
    ),
    "quarantined": (
        plant_verdict,
        "problem",
        "free (tflite) is in quarantine",
        "inspect --release free",
    ),
    "token readable by others": (
        lambda p: plant_token(p, mode=0o644),
        "problem",
        "read by others",
        "chmod 600",
    ),
    "token damaged": (
        lambda p: plant_token(p, "?"),
        "problem",
        "contains no token",
        "rm ",
    ),
    "token is a folder": (
        lambda p: (p.home / "token").mkdir(),
        "problem",
        "is not a file",
        "mv ",
    ),
    "token in shared storage": (
        plant_shared_token,
        "problem",
        "shared storage",
        "unset POCKETSERVE_TOKEN_FILE",
    ),
    "address not there": (
        variable("HOST", "192.0.2.1"),
        "problem",
        "is not an address to listen on",
        "--host 127.0.0.1",
    ),
    "killed": (
        plant_killed,
        "warning",
        "was killed, most likely by Android",
        "termux-wake-lock",
    ),
    "restarted": (
        lambda p: plant_killed(p, "old"),
        "warning",
        "restart of the device",
        "pocketserve serve",
    ),
    "background": (
        plant_background,
        "warning",
        "none of the fastest",
        "Unrestricted",
    ),
    "memory unreadable": (
        lambda p: (p.base / "root/proc/meminfo").unlink(),
        "warning",
        "does not report the available memory",
        "POCKETSERVE_MEMORY_BUDGET",
    ),
    "little memory": (
        lambda p: p.file("root/proc/meminfo", "MemAvailable: 100000 kB\n"),
        "warning",
        "only 102 MB of memory",
        "close other apps",
    ),
    "budget too large": (
        variable("MEMORY_BUDGET", "64Gi"),
        "warning",
        "budget is 68.7 GB",
        "MEMORY_BUDGET=1953Mi",
    ),
    "disk full": (
        change("free_disk", lambda folder: 10 << 20),
        "problem",
        "only 10 MB are free in",
        "du -sh",
    ),
    "disk nearly full": (
        change("free_disk", lambda folder: 100 << 20),
        "warning",
        "only 105 MB are free in",
        "du -sh",
    ),
    "clock not set": (
        change("now", 1000.0),
        "problem",
        "the clock is wrong",
        "automatic",
    ),
    "no wake lock tool": (
        lambda p: p.without("termux-wake-lock"),
        "warning",
        "termux-wake-lock is missing",
        "pkg install termux-tools",
    ),
    "hot": (
        lambda p: p.tool(
            "termux-battery-status",
            """echo '{"percentage": 50, "temperature": 45.1}'""",
        ),
        "warning",
        "hot (45 °C)",
        "cool down",
    ),
    "battery low": (
        lambda p: p.tool(
            "termux-battery-status",
            """echo '{"percentage": 9, "plugged": "UNPLUGGED"}'""",
        ),
        "warning",
        "low (9 %)",
        "plug it in",
    ),
    "battery tool fails": (
        lambda p: p.tool("termux-battery-status", "exit 1"),
        "warning",
        "returned nothing useful",
        "Termux:API app",
    ),
    "many processes": (
        plant_processes,
        "warning",
        "20 processes",
        "settings_enable_monitor_phantom_procs false",
    ),
    "many processes, Android 12": (
        lambda p: (plant_processes(p), p.tool("getprop", "echo 31")),
        "warning",
        "20 processes",
        "max_phantom_processes",
    ),
}


def test_a_healthy_phone_has_no_problems(phone):
    assert phone.complaints() == []
    subjects = {finding.subject for finding in phone.examine()}
    assert subjects >= {
        "python",
        "packages",
        "pillow",
        "runtimes",
        "models",
        "token",
        "ports",
        "cores",
        "battery",
    }


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_planted_problem_is_found(phone, name):
    plant, level, sentence, fix = PROBLEMS[name]
    plant(phone)
    complaints = phone.complaints()
    found = [finding for finding in complaints if sentence in finding.sentence]
    assert {finding.level for finding in found} == {level}, complaints
    assert fix in found[0].fix
    assert all(finding.fix for finding in complaints)


def test_a_taken_port_is_reported_with_its_owner(phone):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        phone.environ["POCKETSERVE_HTTP_PORT"] = str(port)
        (unknown,) = phone.complaints()
        assert "taken by another app" in unknown.sentence
        assert "--http-port" in unknown.fix
        phone.file(
            "root/proc/net/tcp",
            f"head\n 0: 0100007F:{port:04X} 00000000:0000 0A 0:0 0:0 0 10234 0 5555 1\n",
        )
        phone.file("root/proc/77/comm", "squatter\n")
        (phone.base / "root/proc/77/fd").mkdir()
        (phone.base / "root/proc/77/fd/3").symlink_to("socket:[5555]")
        (known,) = phone.complaints()
        assert "taken by squatter (process 77)" in known.sentence
        assert "kill 77" in known.fix


def test_a_running_server_may_use_its_own_port(phone):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        phone.environ["POCKETSERVE_HTTP_PORT"] = str(port)
        marker = RunLock(phone.state, (port,))
        assert phone.complaints() == []
        marker.close()


def server_finding(phone, **options):
    (finding,) = check_server(phone.device(), read_settings(phone.device(), **options))
    return finding


def test_a_missing_server_is_a_problem_only_at_a_named_address(phone):
    url = f"http://127.0.0.1:{phone.environ['POCKETSERVE_HTTP_PORT']}"
    finding = server_finding(phone)
    assert finding.level == Level.OK
    assert finding.fix == "pocketserve serve"
    assert finding.sentence == f"no server runs at {url} (connection refused)"
    for other in (url, url.replace("http", "socket")):
        finding = server_finding(phone, url=other)
        assert finding.level is Level.WARNING
        assert f"no server runs at {other}, where --url says" in finding.sentence
        phone.environ["POCKETSERVE_URL"] = other
        finding = server_finding(phone)
        assert finding.level is Level.WARNING
        assert "unset POCKETSERVE_URL" in finding.fix
        del phone.environ["POCKETSERVE_URL"]
    for nonsense in (
        "127.0.0.1:8470",
        "http://",
        "ftp://x",
        "http://x:99999",
        "http://[::1",
    ):
        assert (
            "an address looks like http://"
            in server_finding(phone, url=nonsense).sentence
        )
    for nonsense in ("http://a..b", f"socket://{'a' * 70}.example"):
        assert "no host can be called" in server_finding(phone, url=nonsense).sentence


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (404, "with status 404"),
        (200, "with a page of its own"),
    ],
)
def test_another_program_at_the_servers_address_is_reported(phone, status, told):
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        finding = server_finding(phone, url=f"http://127.0.0.1:{other.server_port}")
        thread.join(120)
    assert finding.level is Level.WARNING
    assert f"something else answers there, {told}" in finding.sentence


def test_a_server_at_its_address_is_fine(phone, server):
    phone.environ["POCKETSERVE_HTTP_PORT"] = str(server.ready["http"]["port"])
    finding = server_finding(phone)
    assert finding.level is Level.OK
    assert "clients look elsewhere by default" in finding.sentence
    assert finding.fix == f"export POCKETSERVE_URL={server.url}"
    for url in (server.url, f"socket://127.0.0.1:{server.ready['socket']['port']}"):
        finding = server_finding(phone, url=url)
        assert finding.level == Level.OK
        assert finding.sentence == f"a server answers at {url} (--url)"


def test_models_that_a_running_server_still_serves_are_fine(phone) -> None:
    """A model loaded before its file broke still answers."""
    folder = phone.file("models/broken/model.toml", "task = 7").parent.parent
    phone.file("models/broken/broken.tflite", "")
    phone.environ["POCKETSERVE_MODELS_DIR"] = str(folder)
    (alone,) = (
        finding for finding in phone.examine() if " of 1 model in " in finding.sentence
    )
    assert alone.sentence == f"0 of 1 model in {folder} can be served"
    marker = RunLock(phone.state, (), models_dir=str(folder))
    (served,) = (
        finding for finding in phone.examine() if " of 1 model in " in finding.sentence
    )
    marker.close()
    assert served.sentence.endswith(
        "; a model that the running server had loaded before its fault still answers"
    )
    assert served.fix == "pocketserve models"


def test_a_phone_that_slept_under_a_running_server_lacked_a_wake_lock(phone):
    marker = RunLock(phone.state, ())
    (path,) = (phone.state / "runs").glob("*.json")
    run = json.loads(path.read_text()) | {"suspended": 0.0}
    # the same file, whose lock shows that the server is alive
    with path.open("r+") as file:
        file.truncate()
        json.dump(run, file)
    phone.changes["suspended"] = 600.0
    (finding,) = phone.complaints()
    assert "slept 10 min" in finding.sentence
    assert finding.fix == "termux-wake-lock"
    marker.close()


def run_server(phone) -> RunLock:
    """Make this process count as the phone's server."""
    return RunLock(phone.state, ())


def of_server_process(phone) -> Finding:
    """Return the finding about stopped servers."""
    findings = [each for each in phone.examine() if each.subject == "server process"]
    (finding,) = findings
    return finding


def test_a_stopped_server_is_found(phone):
    marker = run_server(phone)
    stat = f"root/proc/{os.getpid()}/stat"
    phone.file(stat, f"{os.getpid()} (pocket) serve) S 1 1")
    assert of_server_process(phone).level is Level.OK
    for state in "Tt":
        phone.file(stat, f"{os.getpid()} (pocket) serve) {state} 1 1")
        finding = of_server_process(phone)
        assert finding.level is Level.PROBLEM
        assert "is stopped and answers no requests" in finding.sentence
        assert finding.fix == f"kill -CONT {os.getpid()}"
    marker.close()


@pytest.mark.parametrize(
    ("line", "file", "content"),
    [
        (
            "0::/uid_10/pid_7",
            "uid_10/pid_7/cgroup.events",
            "populated 1\nfrozen {}\n",
        ),
        ("4:cpuset,freezer:/apps", "freezer/apps/freezer.state", "{}\n"),
    ],
    ids=["version 2", "version 1"],
)
def test_a_frozen_server_is_found(phone, line, file, content):
    marker = run_server(phone)
    phone.file(f"root/proc/{os.getpid()}/cgroup", f"1:cpu:/\n{line}\n")
    awake, frozen = ("0", "1") if "frozen" in content else ("THAWED", "FROZEN")
    phone.file(f"root/sys/fs/cgroup/{file}", content.format(awake))
    assert of_server_process(phone).level is Level.OK
    phone.file(f"root/sys/fs/cgroup/{file}", content.format(frozen))
    finding = of_server_process(phone)
    assert "is frozen and answers no requests" in finding.sentence
    assert "open Termux" in finding.fix
    marker.close()


def test_an_invisible_control_group_is_not_followed(phone):
    marker = run_server(phone)
    phone.file(f"root/proc/{os.getpid()}/cgroup", "0::/../../secret\n")
    phone.file("root/secret/cgroup.events", "frozen 1\n")
    assert of_server_process(phone).level is Level.OK
    marker.close()


def test_a_hung_battery_tool_is_killed(phone, monkeypatch):
    monkeypatch.setattr("pocketserve.doctor.android.BATTERY_TIMEOUT_S", 0.2)
    phone.tool("termux-battery-status", "sleep 60 & sleep 60")
    (finding,) = phone.complaints()
    assert "does not answer" in finding.sentence


def test_hung_imports_share_one_limit(phone):
    for name in ("torch", "onnxruntime", "tensorflow"):
        phone.package(name, HANG)
    results = try_imports(
        phone.device(),
        [[name] for name in ("torch", "onnxruntime", "tensorflow")],
        limit=1.0,
    )
    assert {result.unknown for result in results.values()} == {
        "its import takes longer than 1 s"
    }
    assert {result.fault for result in results.values()} == {""}


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("torch", "runtimes"),
        ("PIL", "pillow"),
        ("flask", "packages"),
        ("numpy", "packages"),
    ],
)
def test_a_slow_import_is_not_a_broken_package(phone, name, subject):
    """A phone's first import compiles the package, longer than the doctor waits."""
    phone.without(name)
    phone.package("PIL/Image" if name == "PIL" else name, HANG)
    findings = list(check_packages(phone.device(), 1.0))
    # Nor are later packages blamed.
    assert Level.PROBLEM not in {finding.level for finding in findings}
    (slow,) = (
        finding for finding in findings if finding.sentence.startswith(f"{name} ")
    )
    assert slow.level == Level.WARNING
    assert slow.subject == subject
    assert (
        "is installed, but whether it works is not known: its import takes longer than 1 s"
        in slow.sentence
    )
    assert f"python -c 'import {name}" in slow.fix
    assert "pocketserve doctor" in slow.fix


def test_a_module_after_one_that_ends_the_process_is_not_blamed(phone):
    phone.package("waitress", "import os; os._exit(1)")
    results = try_imports(phone.device(), [["flask", "waitress", "requests"]])
    assert results["flask"].fault == ""
    assert "exit code 1" in results["waitress"].fault
    assert "one before it" in results["requests"].unknown
    assert results["requests"].fault == ""


def test_output_of_a_framework_is_ignored(phone):
    phone.package(
        "torch", "import sys; print('noise' * 1000, end=''); __version__ = '2.0'"
    )
    assert try_imports(phone.device(), [["torch"]])["torch"].version == "2.0"


def test_a_check_that_fails_or_hangs_does_not_delay_others():
    never = threading.Event()

    def fails():
        raise RuntimeError("odd")

    def hangs():
        never.wait(60)
        return ()

    findings = run_checks(
        {
            "a": fails,
            "b": hangs,
            "c": lambda: [ok("c", "fine")],
        },
        2.0,
    )
    never.set()
    assert [finding.subject for finding in findings] == ["a", "b", "c"]
    assert "RuntimeError: odd" in findings[0].sentence
    assert "took longer" in findings[1].sentence
    assert findings[2].level is Level.OK


def test_proot_is_told_from_termux(phone):
    phone.changes |= {"platform": "linux", "release": "6.17.0-PRoot-Distro"}
    assert any("Linux under proot" in finding.sentence for finding in phone.examine())
    phone.without("PIL")
    assert [finding.fix for finding in phone.complaints()] == ["pip install pillow"]


def test_proot_is_known_by_its_tracer(phone):
    phone.file("root/proc/self/status", "Name:\tpython\nTracerPid:\t9\n")
    phone.file("root/proc/9/comm", "proot\n")
    assert phone.device().proot
    assert not phone.device().termux


def test_an_empty_device_still_gets_a_report(phone, tmp_path):
    """It has no packages, tools, /proc or /sys."""
    import shutil

    for folder in ("usr", "bin", "root", "home"):
        shutil.rmtree(tmp_path / folder)
    complaints = phone.complaints()
    assert {"packages", "pillow", "runtimes", "models", "memory"} <= {
        finding.subject for finding in complaints
    }
    assert all(finding.fix for finding in complaints)


def test_the_settings_library_is_missing(phone, monkeypatch):
    """Without platformdirs, checks that need no settings still run."""
    del phone.environ["POCKETSERVE_STATE_DIR"]
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere/else")
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    settings = read_settings(phone.device())
    assert settings.config is None
    assert "platformdirs" in settings.findings[0].fix


# --- The command


def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {}
    for name, value in os.environ.items():
        if not name.startswith("POCKETSERVE_"):
            environ[name] = value
    command = [sys.executable, "-m", "pocketserve", "doctor", *words]
    return subprocess.run(
        command, env=environ | variables, capture_output=True, text=True, timeout=60
    )


def test_the_command_prints_json_and_fails_on_problems(tmp_path):
    free = {
        "POCKETSERVE_HTTP_PORT": "0",
        "POCKETSERVE_SOCKET_PORT": "0",
        "POCKETSERVE_STATE_DIR": str(tmp_path),
    }
    free["POCKETSERVE_TOKEN_FILE"] = str(tmp_path / "token")
    done = call("--json", **free)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["ok"] is True, done.stdout
    assert set(document["findings"][0]) == {"subject", "level", "sentence", "fix"}
    (tmp_path / "token").write_text("x" * 43)
    (tmp_path / "token").chmod(0o666)
    done = call(**free)
    assert done.returncode == 1
    assert done.stderr == ""
    assert re.search(r"^PROBLEM +token", done.stdout, re.MULTILINE)
    assert "-> chmod 600" in done.stdout
    assert "1 problem" in done.stdout


def test_the_command_loads_no_package(tmp_path):
    """It must work where everything else is broken."""
    code = (
        "import sys, pocketserve.cli.commands.doctor as d, pocketserve.doctor.settings, json;"
        "print(sorted({'numpy', 'flask', 'requests', 'waitress', 'platformdirs'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_later_start_records_the_killed_server(phone):
    plant_killed(phone)
    (phone.state / "runs/4711.json").rename(phone.state / KILLED_FILE)
    (finding,) = phone.complaints()
    assert "process 4711" in finding.sentence


@pytest.mark.parametrize(
    ("platform", "count"),
    [
        ("android", 1),
        ("linux", 0),
    ],
)
def test_termux_is_told_the_ways_to_hugging_face_models(phone, platform, count):
    phone.changes |= {"platform": platform, "environ": {}}
    device = phone.device()
    findings = list(_hugging_face(device, ["transformers"]))
    assert len(findings) == count
    for finding in findings:
        assert "GGUF" in finding.sentence
        assert "ONNX" in finding.sentence
