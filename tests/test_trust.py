"""Run a model's code only after its owner's consent.

No file of the model and no request can give it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import resource
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from conftest import ROOT, Server, StartServer
from places import MODELS
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.repository.files import fingerprint
from pocketserve.repository.scan import VersionEntry, scan
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_format import Code
from pocketserve.state import permissions
from pocketserve.state.permissions import foreign_writer
from pocketserve.trust.code_parts import code_of
from pocketserve.trust.modules import modules_beside, run_file
from pocketserve.trust.store import FILE_NAME, TrustStore, embedded_code
from pocketserve.trust.verified_files import private_copy, read_code
from trusting import trust_all, trusted

TFLITE = ROOT / "tests" / "runtimes" / "data" / "dynamic_batch.tflite"
TASK = "import helper\n\ndef answer(outputs, options, context):\n    return {'said': helper.WORD}\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Return a models folder whose model has its own task and a module beside it."""
    own = tmp_path / "models" / "mine"
    own.mkdir(parents=True)
    shutil.copy(TFLITE, own / "mine.tflite")
    (own / "task.py").write_text(TASK)
    (own / "helper.py").write_text("WORD = 'first'\n")
    return tmp_path / "models"


def version_of(models: Path, name: str = "mine") -> VersionEntry:
    entry = scan(models)[name]
    return entry.versions[entry.default_version]


def check(models: Path, state: Path, name: str = "mine") -> frozenset[str]:
    """Ask as a load does."""
    return TrustStore(state).check(scan(models)[name], version_of(models, name))


def ask(server: Server) -> tuple[int, str]:
    """Return a first request's status, and the helper's word or the error."""
    answer = server.call("POST", "/predictions/mine", data=json.dumps([1.0, 2.0, 3.0]))
    content = answer.json()
    return answer.status_code, content["predictions"][0][
        "said"
    ] if answer.status_code == 200 else content["error"]


def command(
    *words: str, state: Path, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``pocketserve trust``."""
    return subprocess.run(
        [sys.executable, "-m", "pocketserve", "trust", *words],
        env={**os.environ, "POCKETSERVE_STATE_DIR": str(state)},
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# --- The rule


@pytest.mark.live
def test_code_runs_only_after_consent(
    new_server: StartServer, models: Path, tmp_path: Path
) -> None:
    """The refusal names the command.

    Afterwards requests work until a file changes.
    """
    state = tmp_path / "state"
    server = new_server(models, "--state-dir", str(state))
    status, text = ask(server)
    assert status == 503
    assert (
        f"task.py is code that is not trusted; `pocketserve trust {models}/mine` shows"
        in text
    )
    (entry,) = server.call("POST", "/v2/repository/index").json()
    assert entry["state"] == "UNAVAILABLE"
    assert "not trusted" in entry["reason"]
    refused = command("mine", "--models-dir", str(models), state=state)
    assert refused.returncode == 1
    assert "--yes" in refused.stderr
    assert ask(server)[0] == 503
    given = command(str(models / "mine"), "--yes", state=state)
    assert given.returncode == 0, given.stderr
    assert all(
        name in given.stdout
        for name in ("task.py", "helper.py", "can be imported by task.py")
    )
    assert ask(server) == (200, "first")
    (models / "mine" / "helper.py").write_text("WORD = 'second'\n")
    reloaded = server.call("POST", "/v2/repository/models/mine/load")
    assert reloaded.status_code == 503
    assert "helper.py changed since it was trusted" in reloaded.json()["error"]
    assert ask(server) == (200, "first"), "what was trusted serves on"
    assert (
        command("mine", "--models-dir", str(models), "--yes", state=state).returncode
        == 0
    )
    assert server.call("POST", "/v2/repository/models/mine/load").status_code == 200
    assert ask(server) == (200, "second")


def test_the_command_lists_and_revokes(models: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert (
        "Only code of the embedded models is trusted"
        in command("--list", state=state).stdout
    )
    done = command(
        "mine",
        "--models-dir",
        str(models),
        "--yes",
        "--json",
        state=state,
    )
    assert {part["name"] for part in json.loads(done.stdout) if part["added"]} == {
        "task.py",
        "helper.py",
    }
    assert (state / FILE_NAME).stat().st_mode & 0o777 == 0o600
    listed = command(
        "--list", "--state-dir", str(state), state=tmp_path / "other"
    ).stdout
    assert str(models / "mine" / "task.py") in listed
    check(models, state)
    assert command("--revoke", "mine", state=state).returncode == 0
    with pytest.raises(ModelLoadError, match="not trusted"):
        check(models, state)
    again = command("--revoke", "mine", state=state)
    assert again.returncode == 1
    assert "nothing of 'mine' is trusted" in again.stderr
    assert command(state=state).returncode == 2


def test_the_command_trusts_a_path_of_a_model(models: Path, tmp_path: Path) -> None:
    """A trailing slash doesn't matter, and consent by name can be revoked by path."""
    state = tmp_path / "state"
    assert command(f"{models}/mine/", "--yes", state=state).returncode == 0
    assert check(models, state)
    assert command("--revoke", f"{models}/mine", state=state).returncode == 0
    with pytest.raises(ModelLoadError):
        check(models, state)


def test_a_manifest_is_not_consent(tmp_path: Path) -> None:
    own = tmp_path / "models" / "mine"
    own.mkdir(parents=True)
    shutil.copy(TFLITE, own / "mine.tflite")
    for lines in ('delegate = "libm.so.6"', 'delegate = "x.so"\ntrust = true'):
        (own / "model.toml").write_text(
            f'[versions.one]\nfile = "mine.tflite"\n{lines}\n'
        )
        with pytest.raises(ModelLoadError, match="is code that is not trusted"):
            check(tmp_path / "models", tmp_path / "state")


@pytest.mark.parametrize("code", [Code.MODULES, Code.FILE])
def test_any_format_with_code_needs_consent(
    models: Path, tmp_path: Path, code: Code
) -> None:
    """The format declares it, whatever its name."""
    (models / "mine" / "task.py").unlink()
    entry = scan(models)["mine"]
    version = version_of(models)
    assert TrustStore(tmp_path / "state").check(entry, version) == frozenset()
    format = version.format._replace(name="other", code=code)
    with pytest.raises(ModelLoadError, match="is code that is not trusted"):
        TrustStore(tmp_path / "state").check(entry, version._replace(format=format))


def test_options_are_part_of_the_consent(tmp_path: Path) -> None:
    """They control the code: another function of ``model.py``, or a delegate's text."""
    own = tmp_path / "models" / "mine"
    own.mkdir(parents=True)
    (own / "model.py").write_text("from os import system as other\ndef build(): ...\n")
    text = '[versions.torch]\nfile = "model.py"\nfunction = "build"\n'
    (own / "model.toml").write_text(text)
    trust_all(tmp_path / "models", tmp_path / "state")
    check(tmp_path / "models", tmp_path / "state")
    (own / "model.toml").write_text(
        text.replace('"build"', '"other"') + 'arguments = { command = "true" }\n'
    )
    with pytest.raises(
        ModelLoadError, match=r"\[versions\.torch\] changed since it was trusted"
    ):
        check(tmp_path / "models", tmp_path / "state")


@pytest.mark.parametrize("name", ["model.py", "digits.pt2"])
def test_the_embedded_code_is_part_of_the_package(tmp_path: Path, name: str) -> None:
    """Its hashes are built in, so that no file beside it benefits."""
    shutil.copytree(MODELS / "digits", tmp_path / "models" / "digits")
    entry = scan(tmp_path / "models")["digits"]
    (version,) = [one for one in entry.versions.values() if one.path.name == name]
    store = TrustStore(tmp_path / "state")
    assert store.check(entry, version)
    assert store.known_reason(entry, version) is None
    with version.path.open("ab") as file:
        file.write(b"#")
    with pytest.raises(ModelLoadError, match=f"{name} is code that is not trusted"):
        store.check(entry, version)


def test_the_hashes_of_the_embedded_code_are_up_to_date() -> None:
    path = ROOT / "tools" / "embedded_code.py"
    spec = importlib.util.spec_from_file_location("embedded_code", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert embedded_code() == tool.hashes(), "run python tools/embedded_code.py"


# Permissions


@pytest.mark.parametrize("what", ["file", "helper", "folder", "parent"])
@pytest.mark.parametrize("who", ["every user", "the group"])
def test_code_that_others_may_write_is_not_run(
    models: Path, tmp_path: Path, what: str, who: str
) -> None:
    """This covers the file, modules beside it, and writable folders."""
    own = models / "mine"
    trust_all(models, tmp_path / "state")
    place = {
        "file": own / "task.py",
        "helper": own / "helper.py",
        "folder": own,
        "parent": models,
    }[what]
    if who == "every user":
        place.chmod(place.stat().st_mode | 0o002)
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file to a group that it is not in")
        os.chown(place, -1, 12345)
        place.chmod(place.stat().st_mode | 0o020)
    with pytest.raises(
        ModelLoadError, match=f"its code is not run: .*can be written by {who}"
    ):
        check(models, tmp_path / "state")
    done = command(str(own), "--yes", state=tmp_path / "other")
    assert done.returncode == 1
    assert "can be written by" in done.stderr


def test_the_owners_own_group_may_write(tmp_path: Path) -> None:
    """Umask 002 makes such files if each user has a group; sticky parent folders are
    fine.
    """
    assert foreign_writer(tmp_path) is None
    file = tmp_path / "file"
    file.write_text("")
    file.chmod(0o664)
    permissions._group.cache_clear()
    import grp
    import pwd

    owner = pwd.getpwuid(file.stat().st_uid)
    group = grp.getgrgid(file.stat().st_gid)
    own = owner.pw_name == group.gr_name and not set(group.gr_mem) - {owner.pw_name}
    assert (foreign_writer(file) is None) == own


def test_a_file_of_another_user_is_not_run(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    file = tmp_path / "file"
    file.write_text("")
    os.chown(file, 12345, -1)
    assert "belongs to another user" in str(foreign_writer(file))


def test_consent_that_others_could_have_written_is_ignored(
    models: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    trust_all(models, state)
    check(models, state)
    for place, mode in ((state / FILE_NAME, 0o602), (state, 0o777)):
        before = place.stat().st_mode
        place.chmod(mode)
        with pytest.raises(ModelLoadError, match="not trusted"):
            check(models, state)
        place.chmod(before)
    check(models, state)
    for damaged in (b"", b"[]", b'{"x": 1}', b"\xff" * 99, b"[" * 99_999):
        (state / FILE_NAME).write_bytes(damaged)
        with pytest.raises(ModelLoadError, match="not trusted"):
            check(models, state)


def test_consent_of_an_older_version_is_ignored(models: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    trust_all(models, state)
    check(models, state)
    document = json.loads((state / FILE_NAME).read_text())
    for consent in document.values():
        del consent["version"]
    (state / FILE_NAME).write_text(json.dumps(document))
    with pytest.raises(ModelLoadError, match="not trusted"):
        check(models, state)


# --- The hashed contents are the ones that run


def test_exactly_the_hashed_bytes_run(tmp_path: Path) -> None:
    """Files replaced after the check and compiled code beside them don't run."""
    file = tmp_path / "code.py"
    file.write_text("x = 1\n")
    allowed = trusted(file)
    file.write_text("x = 2\n")
    for use in (read_code, private_copy, run_file):
        with pytest.raises(
            ModelLoadError, match=r"code\.py is code that is not trusted"
        ):
            use(file, allowed)
    cached = Path(importlib.util.cache_from_source(str(file)))
    cached.parent.mkdir()
    file.write_text("x = 3\n")
    subprocess.run(
        [sys.executable, "-m", "py_compile", str(file)], check=True, timeout=60
    )
    assert cached.is_file()
    stamp = file.stat()
    file.write_text("x = 4\n")
    # The cache looks as if it were of this file.
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert run_file(file, trusted(file)).x == 4


def test_modules_beside_are_trusted_or_not_found(tmp_path: Path) -> None:
    """This holds for code that changes the path, and each model gets its own."""
    main = tmp_path / "main.py"
    helper = tmp_path / "beside_me.py"
    main.write_text(
        "import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\nimport beside_me\nx = beside_me.x\n"
    )
    helper.write_text("x = 1\n")
    paths = list(sys.path)
    try:
        with modules_beside(main, trusted(main, helper)):
            assert run_file(main, trusted(main, helper)).x == 1
        helper.write_text("x = 2\n")
        allowed = trusted(main)
        with (
            modules_beside(main, allowed),
            pytest.raises(ModelLoadError, match=r"beside_me\.py is code"),
        ):
            run_file(main, allowed)
        with modules_beside(main, trusted(main, helper)):
            assert run_file(main, trusted(main, helper)).x == 2
    finally:
        sys.path[:] = paths
    assert "beside_me" not in sys.modules
    assert not (tmp_path / "__pycache__").exists()


def test_a_package_beside_is_covered(tmp_path: Path) -> None:
    own = tmp_path / "models" / "mine"
    (own / "parts").mkdir(parents=True)
    (own / "model.py").write_text("from parts.inner import build\n")
    (own / "parts" / "__init__.py").write_text("")
    (own / "parts" / "inner.py").write_text("def build(): return 'built'\n")
    entry = scan(tmp_path / "models")["mine"]
    names = [part.name for part in code_of(entry, entry.versions["torch"])]
    assert names == ["model.py", "parts/__init__.py", "parts/inner.py"]
    trust_all(tmp_path / "models", tmp_path / "state")
    allowed = check(tmp_path / "models", tmp_path / "state")
    with modules_beside(own / "model.py", allowed):
        assert run_file(own / "model.py", allowed).build() == "built"
    assert not {"parts", "parts.inner"} & set(sys.modules)


LATE = """
import sys
sys.path.insert(0, __file__.rpartition('/')[0])
def prepare(body, hints):
    from {module} import x
    return x
"""


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("later", "later.py"),
        ("later", "later.pyc"),
        ("later", f"later{EXTENSION_SUFFIXES[0]}"),
        ("later", "later/__init__.py"),
        ("spaces.later", "spaces/later.py"),
        ("spaces.later", "spaces/later.pyc"),
    ],
)
def test_late_imports_are_trusted_or_not_found(
    tmp_path: Path, module: str, planted: str
) -> None:
    """Code that put its folder on the path can't run files that were added later."""
    main = tmp_path / "main.py"
    late = tmp_path / planted
    main.write_text(LATE.format(module=module))
    paths = list(sys.path)
    try:
        with modules_beside(main, trusted(main)):
            prepare = run_file(main, trusted(main)).prepare
        late.parent.mkdir(exist_ok=True)
        source = tmp_path / "planted.txt"
        source.write_text("x = 'planted'\n")
        if late.suffix == ".pyc":
            py_compile.compile(str(source), str(late))
        else:
            shutil.copy(source, late)
        importlib.invalidate_caches()
        with pytest.raises(ImportError, match=r"not trusted|No module named"):
            prepare(b"", None)
        if late.suffix == ".py":
            source.write_text("x = 'trusted'\n")
            shutil.copy(source, late)
            with modules_beside(main, trusted(main, late)):
                assert (
                    run_file(main, trusted(main, late)).prepare(b"", None) == "trusted"
                )
    finally:
        sys.path[:] = paths
        for name in ("later", "spaces", "spaces.later"):
            sys.modules.pop(name, None)


def test_each_model_gets_its_own_module_of_a_name(tmp_path: Path) -> None:
    """The first one may import it late, when its names are no longer released."""
    paths = list(sys.path)
    try:
        for name in ("one", "two"):
            own = tmp_path / name
            own.mkdir()
            (own / "later.py").write_text(f"x = '{name}'\n")
            (own / "main.py").write_text(
                LATE.format(module="later")
                + "y = prepare(b'', None)\n" * (name == "two")
            )
            allowed = trusted(own / "main.py", own / "later.py")
            with modules_beside(own / "main.py", allowed):
                module = run_file(own / "main.py", allowed)
            assert module.prepare(b"", None) == name
        assert module.y == "two"
    finally:
        sys.path[:] = paths
        sys.modules.pop("later", None)


def test_a_native_module_needs_consent_and_is_loaded_from_a_copy(
    models: Path, tmp_path: Path
) -> None:
    """One of Python's own represents it.

    The original file is not loaded.
    """
    native = Path(_struct_file())
    laid = models / "mine" / f"_later{EXTENSION_SUFFIXES[0]}"
    shutil.copy(native, laid)
    entry = scan(models)["mine"]
    assert laid.name in [part.name for part in code_of(entry, version_of(models))]
    trust_all(models, tmp_path / "state")
    check(models, tmp_path / "state")
    main = models / "mine" / "task.py"
    with modules_beside(main, trusted(main, laid)):
        spec = importlib.util.find_spec("_later")
        assert spec is not None
        assert spec.loader is not None
        assert (
            Path(spec.loader.get_filename("_later")).read_bytes() == native.read_bytes()
        )  # type: ignore[attr-defined]
    with laid.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelLoadError, match="changed since it was trusted"):
        check(models, tmp_path / "state")
    with (
        modules_beside(main, trusted(main)),
        pytest.raises(ImportError, match="not trusted"),
    ):
        importlib.util.find_spec("_later")


def _struct_file() -> str:
    """Return a native library that exists everywhere."""
    import numpy

    return next(
        str(path)
        for path in Path(numpy.__file__).parent.rglob(f"*{EXTENSION_SUFFIXES[-1]}")
    )


def test_a_verdict_covers_the_modules_beside(models: Path, tmp_path: Path) -> None:
    entry = scan(models)["mine"]
    version = version_of(models)
    quarantine = Quarantine(tmp_path / "state", TrialLimits())
    before = quarantine.key(entry, version)
    stamp = fingerprint(entry, version)
    (models / "mine" / "helper.py").write_text("WORD = 'other'\n")
    assert quarantine.key(entry, version) != before
    assert fingerprint(entry, version) != stamp


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "task.py")
    with pytest.raises(ModelLoadError, match="not a regular file"):
        read_code(tmp_path / "task.py", frozenset())


def test_an_incomplete_copy_is_never_loaded(tmp_path: Path) -> None:
    """If there was no room for a library, the next load copies it again."""
    library = tmp_path / "delegate.so"
    library.write_bytes(os.urandom(100_000))
    consent = {hashlib.sha256(library.read_bytes()).hexdigest()}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(ModelLoadError, match="cannot be copied"):
            private_copy(library, consent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert private_copy(library, consent).read_bytes() == library.read_bytes()
