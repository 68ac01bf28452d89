"""Check the kernel's limits for code in a trial.

It has no network, and can't start programs or write other files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from conftest import MODELS, ROOT, StartServer
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.quarantine.rules import rules_for
from pocketserve.quarantine.sandbox import PROBE
from pocketserve.quarantine.system_calls import (
    ALLOW,
    KILL,
    REFUSE,
    architecture,
    build_filter,
)
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.trust.code_parts import code_of
from pocketserve_wire import ApiError, ErrorCode
from trusting import trust_all

TRIAL_LIMIT_S = 240.0
MAX_TRIALS = 5
TFLITE = ROOT / "tests" / "runtimes" / "data" / "dynamic_batch.tflite"

ATTEMPTS = """
import ctypes, json, os, signal, socket, subprocess, tempfile, threading

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")

def libc_call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")

def thread():
    one = threading.Thread(target=print)
    one.start()
    one.join(120)

def own_file():
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")

def replace():
    libc.execv(b"/bin/true", None)
    raise OSError(ctypes.get_errno(), "")

TRIES = {
    "inet": lambda: socket.socket(socket.AF_INET),
    "inet6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "fork": lambda: os._exit(0) if os.fork() == 0 else None,
    "subprocess": lambda: subprocess.run(["/bin/true"]),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "exec": replace,
    "kill": lambda: os.kill(PARENT, 0),
    "limits": lambda: __import__("resource").prlimit(PARENT, __import__("resource").RLIMIT_CORE),
    "io_uring": lambda: call(425, 1, 0),
    "mode": lambda: os.chmod(SECRET, 0o666),
    "mode of a folder": lambda: os.chmod(OUTSIDE, 0o777),
    "owner": lambda: os.chown(SECRET, os.getuid(), os.getgid()),
    "owner of a link": lambda: os.lchown(SECRET, os.getuid(), os.getgid()),
    "times": lambda: os.utime(SECRET, (0, 0)),
    "attribute": lambda: os.setxattr(SECRET, "user.x", b"1"),
    "attribute removed": lambda: os.removexattr(SECRET, "user.x"),
    "mode at": lambda: call(452, -100, 0, 0, 0),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, PARENT, 19),
    "affinity": lambda: os.sched_setaffinity(PARENT, {0}),
    "scheduler": lambda: os.sched_setscheduler(PARENT, os.SCHED_IDLE, os.sched_param(0)),
    "shared memory": lambda: libc_call(libc.shmget(0x1234, 4096, 0o1600)),
    "semaphores": lambda: libc_call(libc.semget(0x1234, 1, 0o1600)),
    "messages": lambda: libc_call(libc.msgget(0x1234, 0o1600)),
    "queue": lambda: libc_call(libc.mq_open(b"/pocketserve", 0o100, 0o600, None)),
    "write": lambda: open(OUTSIDE + "/written", "w"),
    "append": lambda: open(SECRET, "a"),
    "remove": lambda: os.unlink(SECRET),
    "folder": lambda: os.mkdir(OUTSIDE + "/made"),
    "link": lambda: os.symlink("/", OUTSIDE + "/linked"),
    "secret": lambda: open(SECRET).read(),
    "list": lambda: os.listdir(OUTSIDE),
    "home": lambda: os.listdir(os.path.expanduser("~")),
    "environment": lambda: open(f"/proc/{PARENT}/environ", "rb").read(),
    "memory": lambda: open(f"/proc/{PARENT}/mem", "rb"),
    "passwords": lambda: open("/etc/passwd").read(),
    "a thread": thread,
    "a file of its own": own_file,
    "a pair of sockets": socket.socketpair,
    "a signal to itself": lambda: os.kill(os.getpid(), 0),
    "its own cores": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
}
found = {}
for name, attempt in TRIES.items():
    try:
        attempt()
        found[name] = 0
    except OSError as error:
        found[name] = error.errno
found["token"] = "POCKETSERVE_TOKEN" in os.environ
raise ValueError("FOUND" + json.dumps(found) + "END")
"""
CALLS = (
    *(
        "inet",
        "inet6",
        "netlink",
        "unix",
        "fork",
        "subprocess",
        "spawn",
        "exec",
        "kill",
        "limits",
        "io_uring",
    ),
    *(
        "mode",
        "mode of a folder",
        "mode at",
        "owner",
        "owner of a link",
        "times",
        "attribute",
        "attribute removed",
    ),
    *(
        "priority",
        "affinity",
        "scheduler",
        "shared memory",
        "semaphores",
        "messages",
        "queue",
    ),
)
FILES = (
    "write",
    "append",
    "remove",
    "folder",
    "link",
    "secret",
    "list",
    "home",
    "environment",
    "memory",
    "passwords",
)
ALLOWED = (
    "a thread",
    "a file of its own",
    "a pair of sockets",
    "a signal to itself",
    "its own cores",
)


@pytest.fixture(scope="module")
def report() -> str:
    """Return this device's sandbox layers as the doctor prints them."""
    command = [sys.executable, "-m", "pocketserve.quarantine.sandbox", PROBE]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    sentence: str = json.loads(done.stdout)["sentence"]
    return sentence


def model_with(folder: Path, code: str) -> Path:
    """Write a models folder with one model of this task, whose code the trial runs."""
    own = folder / "models" / "mine"
    own.mkdir(parents=True)
    shutil.copy(TFLITE, own / "mine.tflite")
    (own / "task.py").write_text(code)
    return folder / "models"


def run_trial(models: Path, state: Path, name: str = "mine") -> None:
    """Run the trial of a model whose code is trusted.

    A device that is short of threads or memory asks to try again, and so does a busy
    test machine.
    """
    entry = scan(models)[name]
    version = entry.versions[entry.default_version]
    allowed = frozenset(part.digest for part in code_of(entry, version))
    manifest = entry.manifest
    source = ModelSource(
        version.path, options=version.options, inputs=manifest.inputs, trusted=allowed
    )
    quarantine = Quarantine(state, TrialLimits(timeout=TRIAL_LIMIT_S))
    for _ in range(MAX_TRIALS - 1):
        try:
            return quarantine.check(entry, version, source)
        except ApiError as error:
            if error.code is not ErrorCode.MODEL_NOT_READY:
                raise
    quarantine.check(entry, version, source)


def trial_refusal(models: Path, state: Path) -> str:
    """Return the reason for which a trial refuses a model with trusted code."""
    with pytest.raises(ModelLoadError) as caught:
        run_trial(models, state)
    return str(caught.value)


def test_a_trial_cannot_reach_files_network_or_processes(
    tmp_path: Path, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses each attempt; if it lacks one layer, the report says so and
    the other one applies.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "token").write_text("secret")
    monkeypatch.setenv("POCKETSERVE_TOKEN", "secret")
    told = f"PARENT, OUTSIDE, SECRET = {os.getpid()}, {str(outside)!r}, {str(outside / 'token')!r}\n"
    code = told + ATTEMPTS
    # A reason is short, so the code reports in parts.
    found: dict[str, int] = {}
    for part in range(5):
        part_code = code.replace(
            "in TRIES.items()", f"in list(TRIES.items())[{part}::5]"
        )
        reason = trial_refusal(
            model_with(tmp_path / str(part), part_code), tmp_path / "state"
        )
        found |= json.loads(reason.partition("FOUND")[2].partition("END")[0])
    assert found.pop("token") is False
    assert {name: found[name] for name in ALLOWED} == dict.fromkeys(ALLOWED, 0)
    if "seccomp yes" in report:
        assert {name: found[name] for name in CALLS} == dict.fromkeys(CALLS, 1)
    else:
        assert "seccomp no (" in report
    if "Landlock ABI" in report:
        assert {name: found[name] for name in FILES} == dict.fromkeys(FILES, 13)
        assert [path.name for path in outside.iterdir()] == ["token"]
    else:
        assert "Landlock no (" in report


def test_a_sandbox_refusal_is_named_in_the_reason(tmp_path: Path, report: str) -> None:
    """Harmless code learns which limit stopped it, and the way out."""
    reason = trial_refusal(
        model_with(tmp_path, "import socket\nsocket.socket()\n"), tmp_path / "state"
    )
    if "seccomp yes" in report:
        assert (
            "PermissionError: [Errno 1] Operation not permitted; in its trial a file may use its own"
            in reason
        )
        assert (
            "no network and no further process (`pocketserve serve --no-quarantine` has no trials)"
            in reason
        )


def test_a_process_that_is_killed_for_a_system_call_gets_a_verdict(
    tmp_path: Path,
) -> None:
    code = f"import os\nos.kill(os.getpid(), {int(signal.SIGSYS)})\n"
    reason = trial_refusal(model_with(tmp_path, code), tmp_path / "state")
    assert (
        "in quarantine: it made a system call that no model needs, and that ends its process (SIGSYS)"
        in reason
    )


@pytest.mark.parametrize("killed", [False, True], ids=["at once", "at the next start"])
def test_deeply_nested_folders_are_removed(tmp_path: Path, killed: bool) -> None:
    """A recursive removal once failed on a trial's leftovers and prevented every start."""
    code = "import os\nfor n in range(2500):\n    os.mkdir('d')\n    os.chdir('d')\n"
    code += (
        "os.symlink('/', 'link')\nos.mkdir('shut', 0)\nraise ValueError('it is made')\n"
    )
    state = tmp_path / "state"
    if killed:
        state.mkdir(mode=0o700)
        (state / "trial-left").mkdir()
        made = subprocess.run(
            [sys.executable, "-c", code],
            cwd=state / "trial-left",
            capture_output=True,
            check=False,
        )
        assert b"it is made" in made.stderr
        Quarantine(state, TrialLimits())
    else:
        assert "it is made" in trial_refusal(model_with(tmp_path, code), state)
    assert not [name for name in os.listdir(state) if name.startswith("trial-")]


def test_modules_written_by_a_trial_are_never_imported(tmp_path: Path) -> None:
    """The check of the framework runs outside the sandbox, so it must ignore them."""
    witness = tmp_path / "witness"
    planted = f"open({str(witness)!r}, 'w')"
    code = (
        "import os, sys\n"
        "for name in ('ai_edge_litert', 'tflite_runtime', 'tensorflow', 'numpy', 'sitecustomize', 'usercustomize'):\n"
        f"    with open(name + '.py', 'w') as file: file.write({planted!r})\n"
        "os.kill(os.getpid(), 11)\n"
    )
    models = model_with(tmp_path, code)
    # In its own process: this one may have imported the framework already.
    ask = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from attacks.test_trial_sandbox import trial_refusal\n"
        "print(trial_refusal(Path(sys.argv[2]), Path(sys.argv[3])))\n"
    )
    command = [
        sys.executable,
        "-c",
        ask,
        str(ROOT / "tests"),
        str(models),
        str(tmp_path / "state"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * TRIAL_LIMIT_S, check=False
    )
    assert "it crashed its framework (SIGSEGV)" in done.stdout, (
        done.stdout + done.stderr
    )
    assert not witness.exists()


@pytest.mark.live
def test_a_model_with_a_relative_folder_passes(
    new_server: StartServer, tmp_path: Path
) -> None:
    """The trial has a working folder of its own, but relative paths still resolve."""
    models = model_with(
        tmp_path, "def answer(outputs, options, context):\n    return {'fine': 1}\n"
    )
    trust_all(models)
    server = new_server(Path(os.path.relpath(models)))
    answer = server.call("POST", "/predictions/mine", data="[1, 2, 3]")
    assert answer.status_code == 200, answer.text


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_torchscript_cannot_write_files_in_a_trial(
    tmp_path: Path, report: str
) -> None:
    """Trusted code bypasses our own checks, and the kernel refuses the write."""
    import torch

    own = tmp_path / "models" / "mine"
    # a folder of its own, or it would become a version
    (own / "parts").mkdir(parents=True)
    witness = tmp_path / "witness"

    class Writes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.path: str = str(witness)

        def forward(self, x):
            torch.save(x, self.path)
            return x

    torch.jit.script(Writes()).save(str(own / "parts" / "hidden.bin"))
    (own / "model.py").write_text(
        "import os, torch\n"
        "def build():\n"
        "    return torch.jit.load(os.path.join(os.path.dirname(__file__), 'parts', 'hidden.bin'))\n"
    )
    (own / "model.toml").write_text(
        '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [2]\n'
    )
    # The operator ignores whether the write succeeded.
    run_trial(tmp_path / "models", tmp_path / "state")
    if "Landlock ABI" in report:
        assert not witness.exists()
    else:
        assert "Landlock no (" in report
    torch.jit.load(str(own / "parts" / "hidden.bin"))(torch.zeros(2))
    assert witness.exists(), "it is a real threat: outside of a trial it writes"


@pytest.mark.tfjs
def test_a_trial_that_needs_node_starts_nothing_else(
    tmp_path: Path, report: str
) -> None:
    """Landlock restricts its programs to Node, which has no network either."""
    entry = scan(MODELS)["digits"]
    (version,) = [one for one in entry.versions.values() if one.format.name == "tfjs"]
    rules = rules_for(entry, version, ModelSource(version.path), str(tmp_path))
    assert rules.pop("processes") is True
    listens = "require('net').createServer().on('error', (e) => console.log(e.code)).listen(0, '127.0.0.1')"
    code = (
        "import json, shutil, subprocess, sys\n"
        "from pocketserve.quarantine import sandbox\n"
        "sandbox.confine_files(json.loads(sys.argv[1]))\n"
        "sandbox.confine_calls(may_start_processes=True)\n"
        "node = [shutil.which('node'), '-e', sys.argv[2]]\n"
        "said = subprocess.run(node, stdout=subprocess.PIPE, timeout=60).stdout.decode().strip()\n"
        "try:\n"
        "    other = subprocess.run([sys.executable, '-c', '']).returncode\n"
        "except OSError as error:\n"
        "    other = error.strerror\n"
        "print(json.dumps([said, other]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(rules), listens],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said, other = json.loads(done.stdout)
    if "seccomp yes" in report:
        assert said == "EPERM"
    if "Landlock ABI" in report:
        assert other == "Permission denied"


# --- The filter, interpreted here for machines that are not available


def answer_of(program: bytes, machine: int, number: int, first: int = 0) -> int:
    """Return the kernel's answer to a call: classic BPF over its ``seccomp_data``."""
    data = struct.pack(
        "<iIQQ", number if number < 1 << 31 else number - (1 << 32), machine, 0, first
    ) + bytes(40)
    code = [
        struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)
    ]
    at = 0
    value = 0
    tests: Mapping[int, Callable[[int, int], bool]] = {
        0x15: lambda a, b: a == b,
        0x35: lambda a, b: a >= b,
        0x45: lambda a, b: bool(a & b),
    }
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x06:
            return operand
        else:
            at += if_true if tests[operation](value, operand) else if_false


THREAD = 0x3D0F00
"""The flags with which C libraries start a thread."""

MACHINES = {  # machine, bits: audit, {refused}, {allowed}, clone, kill
    ("x86_64", 64): (
        0xC000003E,
        {41, 57, 58, 59, 101, 165, 310, 322, 425, 434},
        {0, 1, 2, 9, 53, 202, 257},
        56,
        62,
    ),
    ("aarch64", 64): (
        0xC00000B7,
        {198, 221, 117, 40, 270, 281, 425, 434},
        {56, 57, 63, 64, 98, 199, 222},
        220,
        129,
    ),
    ("armv8l", 32): (
        0x40000028,
        {281, 2, 190, 11, 26, 21, 376, 387, 425},
        {3, 4, 5, 192, 240, 288, 322},
        120,
        37,
    ),
}


# chmod, chown, utime, setxattr, removexattr, setpriority, ioprio_set, SysV and POSIX
# queues
ATTRIBUTES = {
    "x86_64": {
        *range(90, 95),
        *range(188, 191),
        *range(197, 200),
        *range(64, 67),
        *range(68, 72),
        29,
        30,
        31,
        132,
        141,
    }
    | {220, 235, 240, 241, 251, 256, 260, 261, 268, 280},
    "aarch64": {
        5,
        6,
        7,
        14,
        15,
        16,
        *range(52, 56),
        *range(186, 197),
        30,
        88,
        140,
        180,
        181,
        238,
    },
    "armv8l": {
        15,
        16,
        94,
        95,
        97,
        182,
        198,
        207,
        212,
        *range(226, 229),
        *range(235, 238),
        269,
        274,
        275,
    }
    | {*range(298, 306), 307, 308, 312, 314, 325, 326, 333, 348, 400, 412, 420},
}
SCHEDULING = {
    "x86_64": {142, 144, 203, 279, 314},
    "aarch64": {118, 119, 122, 239, 274},
    "armv8l": {154, 156, 241, 344, 380},
}


@pytest.mark.parametrize("may_start_processes", [False, True])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[0])
def test_the_filter_refuses_changes_of_attributes_and_priorities(
    machine: tuple[str, int], may_start_processes: bool
) -> None:
    known = architecture(*machine)
    assert known is not None
    program = build_filter(known, 4711, may_start_processes=may_start_processes)
    audit = MACHINES[machine][0]
    refused = ATTRIBUTES[machine[0]] | {452, 463, 466, 469}
    assert {
        number for number in refused if answer_of(program, audit, number) != REFUSE
    } == set()
    for number in SCHEDULING[machine[0]]:
        assert [
            answer_of(program, audit, number, process) for process in (4711, 0)
        ] == [ALLOW, ALLOW]
        assert [
            answer_of(program, audit, number, process) for process in (1, 4712)
        ] == [REFUSE, REFUSE]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[0])
def test_the_filter_of_each_machine_refuses_and_allows_the_right_calls(
    machine: tuple[str, int],
) -> None:
    audit, refused, allowed, clone, kill = MACHINES[machine]
    known = architecture(*machine)
    assert known is not None
    program = build_filter(known, 4711, may_start_processes=False)
    assert len(program) // 8 < 4096  # the kernel's limit
    assert {
        number for number in refused if answer_of(program, audit, number) != REFUSE
    } == set()
    assert {
        number for number in allowed if answer_of(program, audit, number) != ALLOW
    } == set()
    assert answer_of(program, audit, clone, THREAD) == ALLOW
    assert answer_of(program, audit, clone, signal.SIGCHLD) == REFUSE
    assert answer_of(program, audit, 435) == 0x50000 | 38, (
        "clone3: its flags are in memory, so it is as if unknown"
    )
    assert [answer_of(program, audit, kill, process) for process in (4711, 0)] == [
        ALLOW,
        ALLOW,
    ]
    assert [answer_of(program, audit, kill, process) for process in (1, 4712)] == [
        REFUSE,
        REFUSE,
    ]
    assert answer_of(program, 0x40000003, 1) == KILL, (
        "the table of another machine, such as 32-bit x86"
    )
    if machine[0] == "x86_64":
        assert answer_of(program, audit, 0x40000000 | 41) == 0x50000 | 38
    node = build_filter(known, 4711, may_start_processes=True)
    assert answer_of(node, audit, clone, signal.SIGCHLD) == ALLOW
    assert answer_of(node, audit, min(refused & {41, 198, 281})) == REFUSE


@pytest.mark.parametrize("layer", ["Landlock", "seccomp"])
def test_a_system_that_traps_unknown_calls_is_reported(report: str, layer: str) -> None:
    """Android's filter for apps sends SIGSYS for unknown calls; not every trial may die
    of it.
    """
    machine = architecture(os.uname().machine, 8 * struct.calcsize("P"))
    if machine is None:
        assert "seccomp no (" in report
        return
    number = 444 if layer == "Landlock" else machine.seccomp
    code = (
        "import ctypes, os, struct, sys\n"
        "from pocketserve.quarantine import sandbox, system_calls\n"
        f"program = [(0x20, 0, 0, 0), (0x15, 0, 1, {number}), (6, 0, 0, 0x30000), (6, 0, 0, 0x7fff0000)]\n"
        "sandbox.build_filter = lambda *_, **__: b''.join(struct.pack('<HBBI', *one) for one in program)\n"
        "fault = sandbox.confine_calls()\n"
        "assert not fault, fault\n"
        f"os.execv(sys.executable, [sys.executable, '-m', 'pocketserve.quarantine.sandbox', {PROBE!r}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    if "seccomp yes" in report:
        assert done.returncode == 0, done.stderr
        assert (
            f"{layer} no (the system does not allow apps to use it)"
            in json.loads(done.stdout)["sentence"]
        )


def test_an_unknown_machine_has_no_filter() -> None:
    assert architecture("riscv64", 64) is None
    assert architecture("i686", 32) is None


def test_linked_packages_may_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space-saving installers link packages, and owners may keep a delegate elsewhere."""
    packages = tmp_path / "packages"
    elsewhere = tmp_path / "elsewhere"
    packages.mkdir()
    (elsewhere / "linked").mkdir(parents=True)
    (packages / "linked").symlink_to(elsewhere / "linked")
    (elsewhere / "libours.so").write_bytes(b"\x7fELF")
    monkeypatch.setattr(
        sys,
        "path",
        [
            *sys.path,
            str(packages),
            str(packages / "missing.zip"),
        ],
    )
    (tmp_path / "models" / "m").mkdir(parents=True)
    shutil.copy(TFLITE, tmp_path / "models" / "m" / "m.tflite")
    [entry] = scan(tmp_path / "models").values()
    [version] = entry.versions.values()
    options = {"delegate": str(elsewhere / "libours.so")}
    rules = rules_for(
        entry,
        version,
        ModelSource(version.path, options=options),
        str(tmp_path / "trial"),
    )
    assert str(elsewhere / "linked") in rules["execute"]
    assert str(packages) in rules["execute"]
    assert str(elsewhere / "libours.so") in rules["read"]
    assert str(elsewhere) not in (
        *rules["read"],
        *rules["execute"],
    )
