"""Try unseen files in a separate process.

A good file is tried once, and a harmful one never reaches the server.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS, ROOT, StartServer, find_hostile
from places import copy_folder
from pocketserve.engine.lifecycle.loaded_model import load_model
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.quarantine.trial import try_model
from pocketserve.quarantine.verdicts import Verdict, VerdictStore
from pocketserve.repository.files import content_digest, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry, scan
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.registry import FORMATS, runtime_for
from pocketserve.state.folder_lock import PARTIAL_SUFFIX
from pocketserve.state.permissions import StateFolderError, secure
from pocketserve.trust.code_parts import code_of
from pocketserve_client import Client, ServerError
from pocketserve_wire import ApiError, ErrorCode
from trusting import trust_one

FIXTURES = ROOT / "tests" / "runtimes" / "data"

CRASHES = "import os\nos.abort()\ndef build(): ...\n"
HANGS = "import threading\nthreading.Event().wait()\ndef build(): ...\n"
SWALLOWS = (
    "import time\nhoard = bytearray(300 << 20)\ntime.sleep(900)\ndef build(): ...\n"
)


Found = tuple[ModelEntry, VersionEntry]


def entry(folder: Path, name: str = "m") -> Found:
    """Return a folder's model and its default version."""
    model = scan(folder)[name]
    return model, model.versions[model.default_version]


def check(quarantine: Quarantine, found: Found) -> None:
    """Ask the quarantine as a load does."""
    model, version = found
    allowed = frozenset(part.digest for part in code_of(model, version))
    declared = {
        "inputs": model.manifest.inputs,
        "outputs": model.manifest.outputs,
        "trusted": allowed,
    }
    quarantine.check(
        model, version, ModelSource(version.path, options=version.options, **declared)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a models folder with one good model, m."""
    models = tmp_path / "models"
    models.mkdir()
    shutil.copy(MODELS / "petals" / "petals.tflite", models / "m.tflite")
    return models


@pytest.fixture
def quarantine(tmp_path: Path) -> Quarantine:
    """Return a quarantine with a state folder of its own."""
    return Quarantine(tmp_path / "state", TrialLimits(timeout=120))


def test_a_good_file_is_tried_once(
    quarantine: Quarantine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second check starts no process, even in another server with the same state
    folder.
    """
    check(quarantine, entry(folder))
    assert len(json.loads((folder.parent / "state" / "verdicts.json").read_text())) == 1
    monkeypatch.setattr("subprocess.Popen", None)
    check(quarantine, entry(folder))
    check(Quarantine(folder.parent / "state", TrialLimits()), entry(folder))
    assert [path.name for path in (folder.parent / "state").iterdir()] == [
        "verdicts.json"
    ]


def test_a_state_folder_that_cannot_be_made_is_tolerated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials then use the temporary folder.

    If that fails, too, the reason is reported.
    """
    (tmp_path / "file").write_text("")
    (tmp_path / "system").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "system"))
    check(
        Quarantine(tmp_path / "file" / "state", TrialLimits(timeout=120)), entry(folder)
    )
    assert not list((tmp_path / "system").iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(
        ApiError, match="no space to try the file: Not a directory; make room in"
    ) as error:
        check(
            Quarantine(tmp_path / "file" / "state", TrialLimits(timeout=120)),
            entry(folder),
        )
    assert error.value.code is ErrorCode.MODEL_NOT_READY


FULL = """
import resource, sys
from pathlib import Path
from pocketserve.engine.lifecycle.loaded_model import load_model
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelSource

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
model = scan(Path(sys.argv[1]))["m"]
version = model.versions["tflite"]
Quarantine(Path(sys.argv[2]), TrialLimits(timeout=120)).check(model, version, ModelSource(version.path))
"""


def test_a_full_disk_is_not_blamed_on_a_file(folder: Path, tmp_path: Path) -> None:
    """A good file passes even if no byte can be written."""
    command = [sys.executable, "-c", FULL, str(folder), str(tmp_path / "state")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_changed_file_is_tried_again(quarantine: Quarantine, folder: Path) -> None:
    """The verdict belongs to the content, not to the name."""
    check(quarantine, entry(folder))
    before = quarantine.key(*entry(folder))
    shutil.copy(MODELS / "diabetes" / "diabetes.tflite", folder / "m.tflite")
    assert quarantine.key(*entry(folder)) != before
    check(quarantine, entry(folder))


@pytest.mark.parametrize(
    "name",
    [
        "crash-litert-sig.tflite-68-SIGSEGV.tflite",
        "crash-litert-sig.tflite-1315-SIGSEGV.tflite",
    ],
)
@pytest.mark.assets
def test_a_crash_is_survived_and_remembered(
    quarantine: Quarantine, tmp_path: Path, name: str
) -> None:
    """The second refusal is immediate."""
    hostile = find_hostile()
    assert hostile is not None
    (tmp_path / "models").mkdir()
    shutil.copy(hostile / name, tmp_path / "models" / "m.tflite")
    version = entry(tmp_path / "models")
    with pytest.raises(
        ModelLoadError, match=r"crashed its framework \(SIG[A-Z]+\)|damaged|cannot load"
    ):
        check(quarantine, version)


TFLITE_PACKAGES = next(kind.packages for kind in FORMATS if kind.name == "tflite")


@pytest.mark.parametrize(
    ("imports", "opens", "error", "text"),
    [
        (
            "os.abort()",
            "pass",
            RuntimeMissingError,
            "ai_edge_litert is installed, but its import ends the process",
        ),
        (
            "",
            "os.abort()",
            ModelLoadError,
            r"in quarantine: it crashed its framework \(SIGABRT\)",
        ),
    ],
    ids=["import", "file"],
)
def test_a_crash_before_the_file_is_opened_is_not_blamed_on_it(
    quarantine: Quarantine,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    imports: str,
    opens: str,
    error: type[Exception],
    text: str,
) -> None:
    """The trial records whether it opened the file, since importing a framework again
    takes seconds.
    """
    package = tmp_path / "planted" / "ai_edge_litert"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    resolvers = (
        "class OpResolverType:\n    AUTO = BUILTIN_WITHOUT_DEFAULT_DELEGATES = 0\n"
    )
    (package / "interpreter.py").write_text(
        f"import os\n{imports}\n{resolvers}\ndef Interpreter(**options):\n    {opens}\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    for name in [
        name for name in sys.modules if name.partition(".")[0] in TFLITE_PACKAGES
    ]:
        monkeypatch.delitem(sys.modules, name)
    started: list[object] = []

    class Counted(subprocess.Popen[bytes]):
        def __init__(self, command: Any, **options: Any) -> None:
            started.append(command)
            super().__init__(command, **options)

    monkeypatch.setattr("subprocess.Popen", Counted)
    with pytest.raises(error, match=text):
        check(quarantine, entry(folder))
    assert len(started) == 1
    assert bool(quarantine.known_reason(*entry(folder))) is (error is ModelLoadError)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("code", "limit_s", "reason"),
    [
        (CRASHES, 300, r"it crashed its framework \(SIGABRT\)"),
        (HANGS, 6, "it did not finish loading and running within 6 s"),
        (SWALLOWS, 300, "it took more than 400 MiB of memory"),
    ],
    ids=["crash", "hang", "memory"],
)
def test_harmful_files_are_not_loaded(
    tmp_path: Path, code: str, limit_s: int, reason: str
) -> None:
    """A crash, a hang and excessive memory give reasons that are kept until release."""
    # The framework counts as working, since a busy machine may not import it within the
    # hang's limit.
    importlib.import_module("torch")
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    (model / "model.py").write_text(code)
    (model / "model.toml").write_text(
        '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [1]\n'
    )
    quarantine = Quarantine(
        tmp_path / "state", TrialLimits(timeout=limit_s, memory=400 << 20)
    )
    version = entry(tmp_path / "models")
    for _ in range(2):
        with pytest.raises(
            ModelLoadError,
            match=f"in quarantine: {reason}; `pocketserve inspect --release m`",
        ):
            check(quarantine, version)
    assert quarantine.known_reason(*version) is not None
    again = Quarantine(tmp_path / "state", TrialLimits(memory=400 << 20))
    assert again.known_reason(*version) is not None, "a restart forgets it"
    assert quarantine.release(*version) is True
    assert quarantine.known_reason(*version) is None


def test_a_slow_framework_is_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a crash nor the file is blamed."""
    # A folder above the trial's own would be inaccessible to it.
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "slow_framework.py").write_text(HANGS)
    monkeypatch.syspath_prepend(planted)
    model, version = entry(folder)
    slow = version._replace(
        format=version.format._replace(packages=("slow_framework",))
    )
    quarantine = Quarantine(tmp_path / "state", TrialLimits(timeout=0.5))
    with pytest.raises(
        RuntimeMissingError,
        match=r"the import of slow_framework alone takes more than 0\.5 s",
    ):
        check(quarantine, (model, slow))
    assert quarantine.known_reason(model, slow) is None


@pytest.mark.onnx
@pytest.mark.parametrize("free", [True, False])
def test_outputs_of_only_nan_are_refused(
    quarantine: Quarantine, tmp_path: Path, free: bool
) -> None:
    """They show damage, unless a free size of 1 causes them: some graphs need more
    pixels.
    """
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    steps = [
        onnx.helper.make_node("Shape", ["x"], ["width"], start=1),
        onnx.helper.make_node("Cast", ["width"], ["number"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Sub", ["number", "one"], ["less"]),
        onnx.helper.make_node("Div", ["less", "less"], ["y"]),  # 0 / 0 for a width of 1
    ]
    graph = onnx.helper.make_graph(
        steps,
        "g",
        [
            onnx.helper.make_tensor_value_info(
                "x", onnx.TensorProto.FLOAT, ["n", "w" if free else 1]
            )
        ],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
        [onnx.numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    (tmp_path / "models").mkdir()
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=10),
        tmp_path / "models" / "m.onnx",
    )
    if free:
        check(quarantine, entry(tmp_path / "models"))
        return
    with pytest.raises(ModelLoadError, match="'y' is NaN for every input"):
        check(quarantine, entry(tmp_path / "models"))


def masked_mean(onnx: Any, *, damaged: bool) -> Any:
    """Write a text classifier's masked mean, which is 0 / 0 for zeros."""
    node = onnx.helper.make_node
    info = onnx.helper.make_tensor_value_info
    proto = onnx.TensorProto
    steps = [
        node("Gather", ["words", "input_ids"], ["embedded"]),
        node("Cast", ["attention_mask"], ["mask"], to=proto.FLOAT),
        node("Unsqueeze", ["mask", "last"], ["column"]),
        node("Mul", ["embedded", "column"], ["kept"]),
        node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
        node("ReduceSum", ["mask", "middle"], ["count"], keepdims=1),
        node("Div", ["sum", "count"], ["logits"]),
    ]
    words = np.full((7, 2), np.nan if damaged else 1, np.float32)
    numbers = {
        "words": words,
        "last": np.array([-1]),
        "middle": np.array([1]),
    }
    graph = onnx.helper.make_graph(
        steps,
        "g",
        [
            info(name, proto.INT64, ["n", "t"])
            for name in ("input_ids", "attention_mask")
        ],
        [info("logits", proto.FLOAT, ["n", 2])],
        [onnx.numpy_helper.from_array(array, name) for name, array in numbers.items()],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10
    )


@pytest.mark.onnx
@pytest.mark.parametrize("damaged", [True, False])
def test_a_masked_mean_is_not_damage(
    quarantine: Quarantine, tmp_path: Path, damaged: bool
) -> None:
    """NaN for zeros only is noted.

    NaN for all inputs is refused with the ways out.
    """
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    (tmp_path / "models").mkdir()
    onnx.save(masked_mean(onnx, damaged=damaged), tmp_path / "models" / "m.onnx")
    found = entry(tmp_path / "models")
    if damaged:
        ways = "'logits' is NaN for every input.*`pocketserve serve --no-quarantine`.*inspect --release"
        with pytest.raises(ModelLoadError, match=ways):
            check(quarantine, found)
        return
    check(quarantine, found)
    kept = VerdictStore(tmp_path / "state" / "verdicts.json").get(
        quarantine.key(*found)
    )
    assert kept is not None
    assert kept.reason == "its output 'logits' is NaN for an input of zeros"


@pytest.mark.onnx
@pytest.mark.parametrize(
    ("operator", "output", "reason"),
    [
        ("O" * 200_000, "y", r"cannot load m\.onnx.*OOO"),
        ("Div", "y" * 200_000, "its output 'yyy"),
    ],
)
def test_long_names_in_a_reason_are_cut(
    quarantine: Quarantine, tmp_path: Path, operator: str, output: str, reason: str
) -> None:
    """The reason fits into the pipe, and is found quickly."""
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    steps = [onnx.helper.make_node("Sub", ["x", "x"], ["zero"])]
    steps.append(onnx.helper.make_node(operator, ["zero", "zero"], [output]))
    ports = []
    for name in ("x", output):
        ports.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        )
    model = onnx.helper.make_model(
        onnx.helper.make_graph(steps, "g", ports[:1], ports[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 21)],
        ir_version=10,
    )
    (tmp_path / "models").mkdir()
    onnx.save(model, tmp_path / "models" / "m.onnx")
    with pytest.raises(ModelLoadError, match=reason) as caught:
        check(quarantine, entry(tmp_path / "models"))
    assert len(str(caught.value)) < 1200


def test_every_file_that_affects_the_model_is_in_the_verdict(
    quarantine: Quarantine, folder: Path
) -> None:
    """This covers labels and their names, the manifest and ``task.py``, but not
    documentation.
    """
    model = folder / "n"
    model.mkdir()
    shutil.move(folder / "m.tflite", model / "m.tflite")
    seen = [quarantine.key(*entry(folder, "n"))]
    for name, content in (
        ("labels.txt", "one\n"),
        ("labels.txt", "other\n"),
        ("vocab.txt", "word\n"),
        ("task.py", "def answer(outputs, options, context): return []\n"),
        ("model.toml", 'labels = "names.txt"\n'),
        ("names.txt", "one\n"),
        ("model.toml", 'labels = "names.txt"\n[translations]\nde = "de.txt"\n'),
        ("de.txt", "eins\n"),
        ("de.txt", "zwei\n"),
    ):
        (model / name).write_text(content)
        seen.append(quarantine.key(*entry(folder, "n")))
    assert len(set(seen)) == len(seen)
    (model / "README.md").write_text("of no account")
    manifest = (model / "model.toml").read_text()
    (model / "model.toml").write_text(f'# a remark\ndescription = "new"\n{manifest}')
    assert quarantine.key(*entry(folder, "n")) == seen[-1]


@pytest.mark.parametrize("when", ["sides", "check"])
@pytest.mark.parametrize("name", ["labels.txt", "config.json", "names.txt"])
def test_a_side_file_that_changes_meanwhile_is_not_used(
    folder: Path, tmp_path: Path, when: str, name: str
) -> None:
    """Neither a trial nor the server uses contents other than those hashed."""
    model = folder / "n"
    model.mkdir()
    shutil.move(folder / "m.tflite", model / "m.tflite")
    manifest = ""
    if name == "names.txt":
        manifest = 'labels = "names.txt"\n'
    (model / "model.toml").write_text(f'task = "tabular-classification"\n{manifest}')
    laid = model / name
    good, other = (
        '{"id2label": {"0": "%s"}}' if name == "config.json" else "%s\n"
        for _ in range(2)
    )
    laid.write_text(good % "one")

    class Swaps(Quarantine):
        """Replaces the file once it is hashed, or once it is tried."""

    def swapping(self: Quarantine, *given: Any) -> Any:
        found = getattr(Quarantine, when)(self, *given)
        laid.write_text(other % "two")
        return found

    setattr(Swaps, when, swapping)
    with pytest.raises(
        ApiError,
        match=rf"{name} changed while the model was loaded; load the model again",
    ):
        load_model(
            *entry(folder, "n"),
            1,
            10**6,
            Swaps(tmp_path / "state", TrialLimits()),
            math.inf,
        )
    loaded = load_model(
        *entry(folder, "n"),
        1,
        10**6,
        Quarantine(tmp_path / "state", TrialLimits()),
        math.inf,
    )
    assert loaded.task.labels[0] == "two"  # type: ignore[attr-defined]
    loaded.close()


def test_a_task_is_set_up_in_the_trial(quarantine: Quarantine, folder: Path) -> None:
    """A set-up that ends its process ends the trial's, and the verdict names that file."""
    model = folder / "n"
    model.mkdir()
    shutil.move(folder / "m.tflite", model / "m.tflite")
    (model / "task.py").write_text("import os\nos.abort()\n")
    with pytest.raises(
        ModelLoadError, match=r"in quarantine: it crashed its framework \(SIGABRT\)"
    ):
        check(quarantine, entry(folder, "n"))
    (model / "task.py").write_text("def answer(outputs, options, context): return []\n")
    check(quarantine, entry(folder, "n"))


@pytest.mark.onnx
def test_the_memory_of_a_step_counts_in_the_trial(tmp_path: Path) -> None:
    """A huge picture size in the manifest is found in the trial, not in the server."""
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    model = tmp_path / "models" / "m"
    model.mkdir(parents=True)
    ports = [
        onnx.helper.make_tensor_value_info(
            "x", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"]
        ),
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3]),
    ]
    steps = [onnx.helper.make_node("ReduceMax", ["x", "axes"], ["y"], keepdims=0)]
    axes = onnx.numpy_helper.from_array(np.array([2, 3]), "axes")
    graph = onnx.helper.make_graph(steps, "g", ports[:1], ports[1:], [axes])
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=opset, ir_version=10),
        model / "m.onnx",
    )
    (model / "model.toml").write_text(
        'task = "image-classification"\n[image]\nwidth = 16000\nheight = 16000\n'
    )
    quarantine = Quarantine(
        tmp_path / "state", TrialLimits(timeout=60, memory=400 << 20)
    )
    with pytest.raises(ModelLoadError, match="it took more than 400 MiB of memory"):
        check(quarantine, entry(tmp_path / "models"))


STARVED = """
import os, resource, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from pathlib import Path
from pocketserve.engine.lifecycle.loaded_model import load_model
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelSource
from pocketserve_wire import ApiError

model = scan(Path(sys.argv[1]))["m"]
version = model.versions["tflite"]
quarantine = Quarantine(Path(sys.argv[2]), TrialLimits(timeout=60))
import pocketserve.quarantine.process
os.environ["OPENBLAS_NUM_THREADS"] = "4"
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
resource.setrlimit(resource.RLIMIT_STACK, (64 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
import threading
threading.stack_size(32 << 30)  # as the trial's threads by default: none fits into the address space
try:
    quarantine.check(model, version, ModelSource(version.path))
    print("passed")
except ApiError as error:
    print(error.code.name, error.retry_after_s, error.message)
"""


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"\x1c\0\0\0TFL3" + bytes(100),
    ],
    ids=["good", "damaged"],
)
def test_a_lack_of_threads_is_not_blamed_on_a_file(
    folder: Path, tmp_path: Path, content: bytes | None
) -> None:
    """No verdict is stored without a free thread.

    The next request tries again.
    """
    if content is not None:
        (folder / "m.tflite").write_bytes(content)
    command = [sys.executable, "-c", STARVED, str(folder), str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("MODEL_NOT_READY 5") and "try again" in done.stdout, (
        done.stdout,
        done.stderr,
    )
    assert not list((tmp_path / "state").glob("*"))


@pytest.mark.parametrize(
    "name", ["tflite", "onnx", "savedmodel", "tfjs", "keras", "executorch"]
)
def test_a_lack_of_open_files_is_not_blamed_on_a_file(name: str) -> None:
    model = scan(MODELS)["digits"]
    version = model.versions[name]
    runtime_for(version.format)  # imported while files can be opened
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        result = try_model(model, version, ModelSource(version.path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert result["outcome"] == "starved"
    assert "Too many open files" in result["reason"]


def test_a_trial_without_a_process_is_postponed(
    quarantine: Quarantine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", fail)
    with pytest.raises(
        ApiError,
        match=r"no process could be started for the file's trial \(Resource temp",
    ) as error:
        check(quarantine, entry(folder))
    assert error.value.code is ErrorCode.MODEL_NOT_READY
    assert error.value.retry_after_s
    assert not list((folder.parent / "state").glob("trial-*"))


def test_a_verdict_for_lack_of_memory_expires_with_it(
    tmp_path: Path, folder: Path
) -> None:
    """The file is tried again once the device has much more memory."""
    state = tmp_path / "state"
    found = entry(folder)
    store = VerdictStore(state / "verdicts.json")
    reason = "it took more than 1024 MiB of memory"
    store.save(
        Quarantine(state, TrialLimits()).key(*found),
        Verdict(False, reason, memory=1 << 30),
    )
    with pytest.raises(ModelLoadError, match="1024 MiB"):
        check(Quarantine(state, TrialLimits(memory=1 << 30)), found)
    check(Quarantine(state, TrialLimits(memory=2 << 30)), found)


def test_leftovers_of_a_killed_server_are_removed(tmp_path: Path, folder: Path) -> None:
    """A start removes folders and partial files without an owner; running trials keep
    theirs.
    """
    state = tmp_path / "state"
    for path in (state / "trial-dead" / "inside", state / "trial-alive"):
        path.mkdir(parents=True)
    for name in (
        f".verdicts.json.0123456789abcdef{PARTIAL_SUFFIX}",
        "token",
        "tmp.txt",
        "trial-file",
    ):
        (state / name).write_text("")
    (state / f"linked{PARTIAL_SUFFIX}").symlink_to(state / "token")
    holder = os.open(state / "trial-alive", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    Quarantine(state, TrialLimits())
    left = {"trial-alive", "token", "tmp.txt", "trial-file", f"linked{PARTIAL_SUFFIX}"}
    assert {path.name for path in state.iterdir()} == left
    os.close(holder)
    Quarantine(state, TrialLimits())
    assert not (state / "trial-alive").exists()


def test_a_verdict_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk once left an empty file per verdict."""
    store = VerdictStore(tmp_path / "verdicts.json")
    monkeypatch.setattr(
        "os.replace",
        lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    for number in range(3):
        store.save(str(number), Verdict(True))
    assert not list(tmp_path.iterdir())


def test_verdicts_that_others_can_write_are_ignored(tmp_path: Path) -> None:
    """Otherwise they could declare models harmless."""
    path = tmp_path / "verdicts.json"
    VerdictStore(path).save("a", Verdict(True))
    assert VerdictStore(path).get("a") is not None
    path.chmod(0o666)
    assert VerdictStore(path).get("a") is None
    path.unlink()
    os.mkfifo(path)
    assert VerdictStore(path).get("a") is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_state_folder_is_restricted_to_its_owner(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Others lose write access with a warning.

    A folder that stays open is refused.
    """
    tmp_path.chmod(mode)
    secure(tmp_path)
    assert tmp_path.stat().st_mode & 0o077 == 0
    assert "its owner alone" in caplog.text
    secure(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    secure(tmp_path / "file")


def test_a_state_folder_that_stays_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples are Android's shared storage with fixed modes, and another user's
    folder.
    """
    tmp_path.chmod(0o770)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    with pytest.raises(
        StateFolderError, match=r"not on shared storage, with --state-dir"
    ):
        secure(tmp_path)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    if tmp_path.stat().st_uid:
        with pytest.raises(StateFolderError, match="belongs to another user"):
            secure(tmp_path)


def test_a_refusal_by_the_framework_is_not_stored(
    quarantine: Quarantine, folder: Path
) -> None:
    """It has a reason but no verdict: another framework may accept the file."""
    (folder / "m.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with pytest.raises(ModelLoadError, match=r"m\.tflite is damaged"):
        check(quarantine, entry(folder))
    assert not (folder.parent / "state" / "verdicts.json").exists()


def test_sha256_is_enforced(quarantine: Quarantine, folder: Path) -> None:
    """The manifest's digest must match the content."""
    model = folder / "signed"
    model.mkdir()
    shutil.move(folder / "m.tflite", model / "m.tflite")
    right = hashlib.sha256((model / "m.tflite").read_bytes()).hexdigest()
    toml = '[versions.v]\nfile = "m.tflite"\nsha256 = "{}"\n'
    (model / "model.toml").write_text(toml.format(right.upper()))
    check(quarantine, entry(folder, "signed"))
    (model / "model.toml").write_text(toml.format("0" * 64))
    with pytest.raises(
        ModelLoadError, match=f"its SHA-256 is {right}, but model.toml says 0000"
    ):
        check(quarantine, entry(folder, "signed"))


def test_all_files_of_a_version_are_in_the_digest(tmp_path: Path) -> None:
    """Examples are weights beside code, and shards beside a model.json."""
    for name, other in (("model.py", "w.pt"), ("model.json", "shard.bin")):
        folder = tmp_path / name / "m"
        folder.mkdir(parents=True)
        (folder / name).write_text("x")
        (folder / other).write_text("one")
        if name == "model.py":
            (folder / "model.toml").write_text(
                '[versions.v]\nfile = "model.py"\nweights = "w.pt"\n'
            )
        _, version = entry(tmp_path / name)
        before = content_digest(version)
        (folder / other).write_text("two")
        assert content_digest(version) != before, name
        assert any(path.name == other for path in version_files(version))


def test_external_data_is_in_the_digest_and_siblings_are_not(tmp_path: Path) -> None:
    """An ONNX file's digest includes the weights that it names, and nothing else."""
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    tensor = onnx.numpy_helper.from_array(np.ones((64,), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [64])],
        [tensor],
    )
    folder = tmp_path / "m"
    folder.mkdir()
    onnx.save(
        onnx.helper.make_model(graph),
        folder / "m.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    (folder / "m.onnx.txt").write_text("beside it")
    _, version = entry(tmp_path)
    assert [path.name for path in version_files(version)] == ["m.onnx", "weights.bin"]
    before = content_digest(version)
    (folder / "m.onnx.txt").write_text("changed")
    assert content_digest(version) == before
    (folder / "weights.bin").write_bytes(bytes(256))
    assert content_digest(version) != before


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_special_files_are_refused(
    quarantine: Quarantine, folder: Path, name: str
) -> None:
    """A named pipe is not opened, and a link inside a model's folder is not followed."""
    if name == "pipe":
        (folder / "m.tflite").unlink()
        os.mkfifo(folder / "m.tflite")
        model = VersionEntry("tflite", FORMATS[0], folder / "m.tflite")
        version = ModelEntry("m", folder, {"tflite": model}, "tflite"), model
    else:
        (folder / "s").mkdir()
        (folder / "s" / "saved_model.pb").write_bytes(b"x")
        (folder / "s" / "variables").symlink_to(folder)
        version = entry(folder, "s")
    with pytest.raises(ModelLoadError, match=r"is not a regular file|holds links"):
        check(quarantine, version)


def test_a_verdict_of_an_older_version_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.json"
    VerdictStore(path).save("a", Verdict(True))
    document = json.loads(path.read_text())
    del document["a"]["version"]
    path.write_text(json.dumps(document))
    assert VerdictStore(path).get("a") is None


def test_file_names_cannot_forge_a_digest(quarantine: Quarantine, folder: Path) -> None:
    """A name that imitates a line of the list gives another key than two files."""
    found = entry(folder)
    home = found[0].folder
    one = {home / f"a\n{'0' * 64}  b": "1" * 64}
    two = {home / "a": "1" * 64, home / "b": "0" * 64}
    assert quarantine.key(*found, "content", one) != quarantine.key(
        *found, "content", two
    )


def test_verdicts_survive_damage(tmp_path: Path) -> None:
    """A damaged store only repeats trials.

    Changes by other processes are seen.
    """
    store = VerdictStore(tmp_path / "state" / "verdicts.json")
    store.save("a", Verdict(True))
    other = VerdictStore(tmp_path / "state" / "verdicts.json")
    assert other.get("a") == Verdict(True)
    assert other.remove("a")
    assert store.get("a") is None
    for text in (
        "",
        "[]",
        "{",
        '{"a": 1, "b": {"ok": "yes"}, "c": {"ok": false, "reason": 5}}',
    ):
        (tmp_path / "state" / "verdicts.json").write_text(text)
        assert VerdictStore(tmp_path / "state" / "verdicts.json").get("a") is None


@pytest.mark.live
@pytest.mark.assets
def test_hostile_files_do_no_harm(new_server: StartServer, tmp_path: Path) -> None:
    """Each is refused with a reason in the index, and nothing else is affected."""
    hostile = find_hostile()
    assert hostile is not None
    models = tmp_path / "models"
    copy_folder(hostile, models)
    shutil.copytree(MODELS / "petals", models / "petals")
    before = sorted(path.relative_to(models) for path in models.rglob("*"))
    server = new_server(models, "--state-dir", str(tmp_path / "state"))
    with Client(server.url, server.token) as client:
        names = {item["name"] for item in client.index()} - {"petals"}
        assert len(names) == sum(
            1 for path in hostile.iterdir() if path.suffix != ".md"
        )
        for name in sorted(names):
            with pytest.raises(ServerError) as caught:
                client.infer(name, {})
            assert caught.value.status == 503
            assert caught.value.code in (
                "MODEL_FAILED",
                "RUNTIME_MISSING",
            )
            assert (
                client.predict("petals", [5.1, 3.5, 1.4])["task"]
                == "tabular-regression"
            )
        states = {item["name"]: item for item in client.index()}
        assert all(
            states[name]["state"] == "UNAVAILABLE" and states[name]["reason"]
            for name in names
        )
    assert sorted(path.relative_to(models) for path in models.rglob("*")) == before
    assert not list(Path.cwd().glob("PT2_CODE_RAN"))


@pytest.mark.live
def test_a_release_without_a_server_runs_a_trial(folder: Path, tmp_path: Path) -> None:
    """The command drops the verdict, and opens the model only after a new trial."""
    model = folder / "n"
    model.mkdir()
    shutil.move(folder / "m.tflite", model / "m.tflite")
    (model / "task.py").write_text("import os\nos.abort()\n")
    trust_one(folder, "n", tmp_path / "state")
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "inspect",
        "n",
        "--models-dir",
        str(folder),
        "--local",
    ]
    for more in (
        [],
        ["--release"],
        ["--release", "--json"],
    ):
        done = subprocess.run(
            [*command, *more],
            env={**os.environ, "POCKETSERVE_STATE_DIR": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, "it ended by itself"
        assert "in quarantine: it crashed its framework (SIGABRT)" in done.stderr


@pytest.mark.live
def test_a_released_model_is_tried_again(
    new_server: StartServer, folder: Path, tmp_path: Path
) -> None:
    """Quarantine survives a restart.

    Release loads the model if it is good.
    """
    state = tmp_path / "state"
    store = VerdictStore(state / "verdicts.json")
    store.save(
        Quarantine(state, TrialLimits()).key(*entry(folder)),
        Verdict(False, "it crashed its framework (SIGSEGV)"),
    )
    server = new_server(folder, "--state-dir", str(state))
    with Client(server.url, server.token) as client:
        with pytest.raises(ServerError, match="in quarantine: it crashed"):
            client.infer("m", {})
        assert "in quarantine" in client.index()[0]["reason"]
        client.load("m", release=True)
        assert client.index()[0]["state"] == "READY"
