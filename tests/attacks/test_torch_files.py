"""Refuse TorchScript and ``.ptl`` files that access files, in every spelling.

Each attack must first work in PyTorch itself, so that no test passes because its attack
is broken. The runtime must then refuse the file before anything was written, even while
loading.
"""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch")

from pocketserve.runtimes.base import ModelLoadError, ModelSource  # noqa: E402
from pocketserve.runtimes.torch import archive as torch_archive  # noqa: E402
from pocketserve.runtimes.torch import ptl, torchscript  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WRITTEN = "written-by-a-model"
SAVE = f'torch.save(x, "{WRITTEN}")'
MAP = f'torch.from_file("{WRITTEN}", True, 10, dtype=6)'

CLASS = """class Plain(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  _is_full_backward_hook : Optional[bool]
"""
HEAD = """  def forward(self: __torch__.{name},
    x: Tensor) -> Tensor:
"""


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


Plain.__module__ = "__main__"

Members = dict[str, bytes]
Change = Callable[[Members], None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(path: Path, change: Change, module: Any = None) -> Path:
    """Return a scripted module's archive with members changed.

    Source maps are dropped.
    """
    script = torch.jit.script(module or Plain())
    if path.suffix == ".ptl":
        script._save_for_lite_interpreter(str(path))
    else:
        script.save(str(path))
    with zipfile.ZipFile(path) as archive:
        files = {
            name.partition("/")[2]: archive.read(name) for name in archive.namelist()
        }
    members = {
        name: data for name, data in files.items() if not name.endswith(".debug_pkl")
    }
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"a/{name}", data)
    return path


def with_source(text: str, **more: str) -> Change:
    def change(members: Members) -> None:
        members["code/__torch__.py"] = text.encode()
        members |= {f"code/{name}": source.encode() for name, source in more.items()}

    return change


def with_body(body: str, before: str = "", after: str = "") -> Change:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return with_source(before + CLASS + HEAD.format(name="Plain") + lines + after)


def runs(path: Path) -> None:
    """Run the file in PyTorch itself."""
    with suppress(RuntimeError):  # it may fail after the side effect
        torch.jit.load(str(path))(torch.ones(3))


def refused(path: Path, match: str = "") -> None:
    runtime = ptl.RUNTIME if path.suffix == ".ptl" else torchscript.RUNTIME
    with pytest.raises(ModelLoadError, match=match):
        runtime.open(ModelSource(path)).run({"x": np.ones(3, np.float32)})
    assert not Path(WRITTEN).exists()


def works_then_refused(path: Path, match: str = "is code, which is not run") -> None:
    runs(path)
    assert Path(WRITTEN).exists(), "the attack itself does not work: mend the test"
    Path(WRITTEN).unlink()
    refused(path, match)


# --- Spellings within a method

BODIES: Mapping[str, str] = {
    "plain": f"_0 = {SAVE}\nreturn x",
    "alias of torch": f't = torch\n_0 = t.save(x, "{WRITTEN}")\nreturn x',
    "brackets": f'_0 = (torch).save(x, "{WRITTEN}")\nreturn x',
    "ops": f'_0 = ops.aten.save(x, "{WRITTEN}")\nreturn x',
    "alias of ops": f'a = ops.aten\n_0 = a.save(x, "{WRITTEN}")\nreturn x',
    "alias of an alias": f'o = ops\na = o.aten\n_0 = a.save(x, "{WRITTEN}")\nreturn x',
    "getattr": f'_0 = getattr(torch, "save")(x, "{WRITTEN}")\nreturn x',
    "getattr of ops": f'_0 = getattr(ops.aten, "save")(x, "{WRITTEN}")\nreturn x',
    "getattr twice": f'_0 = getattr(getattr(ops, "aten"), "save")(x, "{WRITTEN}")\nreturn x',
    "concatenated": f'f = getattr(torch, "sa" "ve")\n_0 = f(x, "{WRITTEN}")\nreturn x',
    "octal": f'_0 = getattr(torch, "\\163ave")(x, "{WRITTEN}")\nreturn x',
    "alias of the function": f'f = torch.save\n_0 = f(x, "{WRITTEN}")\nreturn x',
    "in a branch": f"if True:\n  _0 = {SAVE}\n  y = x\nelse:\n  y = x\nreturn y",
    "in a branch by the input": f"if bool(torch.any(x)):\n  _0 = {SAVE}\n  y = x\nelse:\n  y = x\nreturn y",
    "in a loop": f"for i in range(1):\n  _0 = {SAVE}\nreturn x",
    "in a while": f"n = 0\nwhile torch.lt(n, 1):\n  _0 = {SAVE}\n  n = torch.add(n, 1)\nreturn x",
    "forked": f"def inner() -> Tensor:\n  _0 = {SAVE}\n  return x\nf = fork(inner)\nreturn torch.wait(f)",
    "forked twice": f"def outer() -> Tensor:\n  def inner() -> Tensor:\n    _0 = {SAVE}\n    return x\n"
    "  f = fork(inner)\n  return torch.wait(f)\nf = fork(outer)\nreturn torch.wait(f)",
    "mapped": f"y = {MAP}\nreturn torch.add(x, torch.size(y, 0))",
    "mapped by an alias": f'm = torch\ny = m.from_file("{WRITTEN}", True, 10, dtype=6)\nreturn torch.copy_(y, y)',
    "mapped by getattr": f'y = getattr(torch, "from_" "file")("{WRITTEN}", True, 10, dtype=6)\nreturn y',
    "mapped, only its size used": f"n = torch.size({MAP}, 0)\nreturn torch.add(x, n)",
    "behind a return": f"_0 = {SAVE}\nif True:\n  return x\nelse:\n  return x",
    "within an expression": f"y = [{MAP}]\nreturn y[0]",
    "within a tuple": f"a, b, = (x, {MAP})\nreturn b",
    "within a dictionary": f'd = {{"a": {MAP}}}\nreturn d["a"]',
    "within a comprehension": f"y = [{MAP} for i in range(1)]\nreturn y[0]",
    "within an assertion": f"n = torch.size({MAP}, 0)\nassert torch.gt(n, 0)\nreturn x",
    "within a conditional": f"y = {MAP} if True else x\nreturn y",
    "behind a continued line": f'_0 = torch.\\\n  save(x, "{WRITTEN}")\nreturn x',
    "behind a comment": f'_0 = (torch. # not a call\n  save)(x, "{WRITTEN}")\nreturn x',
    "apart": f'_0 = torch  .  save  (x, "{WRITTEN}")\nreturn x',
}


@pytest.mark.parametrize("spelling", BODIES)
def test_spellings_in_a_method_are_refused(here: Path, spelling: str):
    works_then_refused(build(here / "a.ts", with_body(BODIES[spelling])))


# --- Other parts of a program

FUNCTION = f"def helper(x: Tensor) -> Tensor:\n  _0 = {SAVE}\n  return x\n"
HELPER = f"""class Helper(Module):
  __parameters__ = []
  __buffers__ = []
  def __getstate__(self: __torch__.Helper) -> Tensor:
    return torch.ones([1])
  def __setstate__(self: __torch__.Helper,
    x: Tensor) -> NoneType:
    _0 = {SAVE}
    return None
"""
PLACES: Mapping[str, Change] = {
    "a function beside the class": with_source(
        FUNCTION + CLASS + HEAD.format(name="Plain") + "    return __torch__.helper(x)\n"
    ),
    "a function in another member": with_source(
        CLASS + HEAD.format(name="Plain") + "    return __torch__.other.helper(x)\n", **{"__torch__/other.py": FUNCTION}
    ),
    "a member in another case": with_source(
        CLASS + HEAD.format(name="Plain") + "    return __torch__.other.helper(x)\n", **{"__TORCH__/Other.PY": FUNCTION}
    ),
    "a method of another class": with_source(
        "class Other:\n  a : int\n  def __init__(self: __torch__.Other) -> NoneType:\n    self.a = 1\n    return None\n"
        f"  def go(self: __torch__.Other, x: Tensor) -> Tensor:\n    _0 = {SAVE}\n    return x\n"
        + CLASS
        + HEAD.format(name="Plain")
        + "    o = __torch__.Other()\n    return (o).go(x, )\n"
    ),
    "the constructor of another class": with_source(
        f"class Other:\n  a : int\n  def __init__(self: __torch__.Other, x: Tensor) -> NoneType:\n    _0 = {SAVE}\n"
        "    self.a = 1\n    return None\n"
        + CLASS
        + HEAD.format(name="Plain")
        + "    o = __torch__.Other(x)\n    return x\n"
    ),
    "the default of an argument": with_source(
        CLASS + f"  def forward(self: __torch__.Plain,\n    x: Tensor,\n    y: Tensor={MAP}) -> Tensor:\n    return x\n"
    ),
    "a size as the default": with_source(
        CLASS + f"  def forward(self: __torch__.Plain,\n    x: Tensor,\n    n: int=torch.size({MAP}, 0)) -> Tensor:\n"
        "    return x\n"
    ),
    "the default by an alias": with_source(
        CLASS + "  def forward(self: __torch__.Plain,\n    x: Tensor,\n"
        f'    y: Tensor=getattr(torch, "from_" "file")("{WRITTEN}", True, 10, dtype=6)) -> Tensor:\n    return x\n'
    ),
    "the default of an inner function": with_body(
        f"def inner(a: Tensor, b: Tensor={MAP}) -> Tensor:\n  return a\nreturn inner(x)"
    ),
    "the default within a comprehension": with_source(
        CLASS + f"  def forward(self: __torch__.Plain,\n    x: Tensor,\n    y: List[Tensor]=[{MAP}]) -> Tensor:\n"
        "    return x\n"
    ),
    "a constant of the class": with_source(
        CLASS + f"  k : Final[Tensor] = {MAP}\n" + HEAD.format(name="Plain") + "    return x\n"
    ),
    "a number of the class": with_source(
        CLASS + f"  k : Final[int] = torch.size({MAP}, 0)\n" + HEAD.format(name="Plain") + "    return x\n"
    ),
    "a constant behind the methods": with_source(
        CLASS + HEAD.format(name="Plain") + f"    return x\n  k : Final[Tensor] = {MAP}\n"
    ),
    "a constant over two lines": with_source(
        CLASS + f"  k : Final[Tensor] = (\n{MAP})\n" + HEAD.format(name="Plain") + "    return x\n"
    ),
    "a constant behind a form feed": with_source(
        CLASS + f"\f k : Final[Tensor] = {MAP}\n".replace("\f ", " \f") + HEAD.format(name="Plain") + "    return x\n"
    ),
    "a constant behind a text in other quotes": with_source(
        CLASS + f"  s : Final[str] = '\"'\n  k : Final[Tensor] = {MAP}\n  t : Final[str] = '\"'\n"
        + HEAD.format(name="Plain") + "    return x\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_attacks_in_other_parts_of_a_program_are_refused(here: Path, place: str):
    works_then_refused(build(here / "a.ts", PLACES[place]))


def setting_itself(members: Members) -> None:
    members["code/__torch__.py"] = (
        HELPER + CLASS + HEAD.format(name="Plain") + "    return x\n"
    ).encode()
    body = members["data.pkl"]
    at = body.index(b"(X") + 1
    members["data.pkl"] = (
        body[:at]
        + b"X\x06\x00\x00\x00helperc__torch__\nHelper\n)\x81"
        + TENSOR
        + b"b"
        + body[at:]
    )
    members["data/0"] = b"\0" * 4


TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    b"X\x03\x00\x00\x00cpuK\x01tQK\x00(K\x01t(K\x01t\x89ccollections\nOrderedDict\n)RtR"
)


def test_a_file_with_effects_while_loading_is_refused(here: Path):
    works_then_refused(build(here / "a.ts", setting_itself))


def test_a_harmless_setstate_is_served(here: Path):
    class Kept(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

        @torch.jit.export
        def __getstate__(self):
            return self.scale, self.training

        @torch.jit.export
        def __setstate__(self, state: tuple[float, bool]):
            self.scale = state[0] * 2
            self.training = state[1]

        def forward(self, x):
            return x * self.scale

    path = here / "a.ts"
    torch.jit.script(Kept()).save(str(path))
    assert torchscript.RUNTIME.open(ModelSource(path)).run(
        {"x": np.ones(1, np.float32)}
    )["output_0"] == [4]


# --- Members of the archive


def test_duplicate_members_are_refused(here: Path):
    path = build(here / "a.ts", lambda members: None)
    hostile = (
        CLASS + HEAD.format(name="Plain") + f"    _0 = {SAVE}\n    return x\n"
    ).encode()
    for name in ("code/__torch__.py", "code/__TORCH__.py", "CODE/__torch__.py"):
        twin = build(here / "b.ts", lambda members: None)
        with warnings.catch_warnings(), zipfile.ZipFile(twin, "a") as file:
            # The message says that the name occurs twice.
            warnings.simplefilter("ignore", UserWarning)
            file.writestr(f"a/{name}", hostile)
        refused(twin, "could be taken for one another")
    assert torchscript.RUNTIME.open(ModelSource(path)) is not None


def test_members_whose_names_pytorch_truncates_are_refused(here: Path):
    long = "__torch__/" + "o" * 600 + ".py"
    call = "__torch__." + "o" * 600 + ".helper(x)"
    change = with_source(
        CLASS + HEAD.format(name="Plain") + f"    return {call}\n", **{long: FUNCTION}
    )
    works_then_refused(build(here / "a.ts", change), "could be taken for one another")


def test_the_old_layout_is_refused(here: Path):
    def change(members: Members) -> None:
        members["MODEL.json"] = b"{}"

    refused(build(here / "a.ts", change), "could be taken for one another")


@pytest.mark.parametrize("suffix", [".ts", ".ptl"])
def test_a_zip_that_is_also_a_flatbuffer_is_refused(here: Path, suffix: str):
    path = build(here / f"a{suffix}", lambda members: None)
    data = bytearray(path.read_bytes())
    data[4:8] = b"PTMF"
    path.write_bytes(data)
    refused(path, "FlatBuffer")


class Weighted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, x):
        return x + self.weight.sum(), self.weight


Weighted.__module__ = "__main__"


def short_record(members: Members) -> None:
    members["data/0"] = members["data/0"][:4]


def large_claim(members: Members) -> None:
    members["data.pkl"] = members["data.pkl"].replace(b"K\x04", b"M\xff\xff")


def outside_of_its_bytes(members: Members) -> None:
    members["data.pkl"] = (
        members["data.pkl"]
        .replace(b"K\x00((K\x04t", b"K\x03((K\x04t")
        .replace(b"K\x00(K\x04t", b"K\x03(K\x04t")
    )


@pytest.mark.parametrize("suffix", [".ts", ".ptl"])
@pytest.mark.parametrize(
    "change",
    [short_record, large_claim, outside_of_its_bytes],
    ids=lambda change: change.__name__,
)
def test_weights_that_overlap_foreign_memory_are_refused(
    here: Path, suffix: str, change: Change
):
    refused(
        build(here / f"a{suffix}", change, Weighted()),
        "claims more bytes|outside of its own",
    )


@pytest.mark.parametrize(
    "name",
    ["__torch__.torch.classes.c10d\nProcessGroup", "__torch__.torch.classes.profiling\n_ScriptProfile",
     "torch.distributed.rpc\nrref",
     "torch._utils\n_rebuild_sparse_tensor", "torch._tensor\n_rebuild_from_type_v2", "os\nsystem", "__torch__/../x\ny"],
)  # fmt: skip
@pytest.mark.parametrize("member", ["data.pkl", "constants.pkl"])
def test_pickles_may_name_only_listed_classes(here: Path, member: str, name: str):
    def change(members: Members) -> None:
        members[member] = b"\x80\x02c" + name.encode() + b"\n)\x81}b\x85."

    refused(build(here / "a.ts", change), "is not among what only computes")


@pytest.mark.parametrize(
    "name", ["c10d.ProcessGroup", "profiling._ScriptProfile", "_nnapi.Compilation"]
)
def test_pytorchs_own_classes_are_served(here: Path, name: str):
    change = with_body(
        "return x",
        before="",
        after=f"  def more(self: __torch__.Plain,\n    o: __torch__.torch.classes.{name}) -> int:\n    return 1\n",
    )
    refused(build(here / "a.ts", change), "it uses the class")


# --- .ptl


class Writer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, "written-by-a-model")
        return x


Writer.__module__ = "__main__"


def lite(path: Path) -> None:
    from torch.jit.mobile import _load_for_lite_interpreter

    _load_for_lite_interpreter(str(path)).forward(torch.ones(3))


def without_code(members: Members) -> None:
    for name in [name for name in members if name.startswith("code/")]:
        del members[name]


@pytest.mark.parametrize(
    "change",
    [
        lambda members: None,
        without_code,
    ],
    ids=["whole", "no code"],
)
def test_ptl_files_that_write_are_refused(here: Path, change: Change):
    path = build(here / "a.ptl", change, Writer())
    lite(path)
    assert Path(WRITTEN).exists(), "the attack itself does not work: mend the test"
    Path(WRITTEN).unlink()
    refused(path, "is code, which is not run|cannot load a.ptl")


def test_ptl_code_beside_harmless_bytecode_is_not_run(here: Path):
    def change(members: Members) -> None:
        members["code/__torch__.py"] = (
            CLASS + HEAD.format(name="Plain") + f"    _0 = {SAVE}\n    return x\n"
        ).encode()
        version, (name, tables, _) = pickle.loads(members["bytecode.pkl"])
        members["bytecode.pkl"] = pickle.dumps((version, (name, tables)), protocol=2)

    refused(build(here / "a.ptl", change), "is code, which is not run")


# --- .ptl: bytecode, which the lite interpreter runs without bounds checks


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x + self.weight, x.sum()


class Outer(torch.nn.Module):
    """Uses branches, loops, tuples, and attributes that are read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), Inner()
        self.count = 2
        self.pair = (1, (2, 3.0))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        y, total = self.first(x)
        if bool(total > 3):
            y, total = self.second(y)
        parts = [y]
        for i in range(self.count):
            parts.append(parts[-1] * i)
        self.seen = self.seen + 1
        a, b = self.pair[1]
        assert x.dim() == 1, f"no {x.dim()}"
        return torch.stack(parts).sum() * a + b


Inner.__module__ = Outer.__module__ = "__main__"

Tables = dict[str, Any]


def with_bytecode(change: Callable[[Tables], None]) -> Change:
    def changed(members: Members) -> None:
        version, (name, tables, schema) = pickle.loads(members["bytecode.pkl"])
        fields = dict(tables)
        change(fields)
        members["bytecode.pkl"] = pickle.dumps(
            (version, (name, tuple(fields.items()), schema)), protocol=2
        )

    return changed


def then(*steps: tuple[Any, ...]) -> Change:
    """Return steps after the first one, which puts the module into register 1 and its
    argument into register 2.
    """

    def change(fields: Tables) -> None:
        first, *rest = fields["instructions"]
        fields["instructions"] = (first, *steps, *rest)

    return with_bytecode(change)


RUN = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.jit.mobile import _load_for_lite_interpreter
load = (torch.jit.load, _load_for_lite_interpreter)[sys.argv[1] == "lite"]
for size in (3, 4):
    try:
        load(sys.argv[2]).forward(torch.ones(size))
    except Exception as error:
        print(error)
"""


def ending(path: Path, interpreter: str = "lite") -> int:
    """Return the exit status of a process that runs a file."""
    command = [sys.executable, "-c", RUN, interpreter, str(path)]
    return subprocess.run(
        command, capture_output=True, timeout=120, check=False
    ).returncode


OUT_OF_BOUNDS: Mapping[str, Change] = {
    "an attribute": then(("LOAD", 1, 0), ("GET_ATTR", 10**7, 0), ("DROP", 0, 0)),
    "an attribute of what was put into an attribute": then(
        ("LOAD", 1, 0), ("LOAD", 1, 0), ("GET_ATTR", 5, 0), ("SET_ATTR", 0, 0),
        ("LOAD", 1, 0), ("GET_ATTR", 0, 0), ("GET_ATTR", 10**7, 0), ("DROP", 0, 0),
    ),
    "values of an empty stack": then(("WARN", 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("what", OUT_OF_BOUNDS)
def test_bytecode_that_reads_foreign_memory_is_refused(here: Path, what: str):
    path = build(here / "a.ptl", OUT_OF_BOUNDS[what], Outer())
    assert ending(path) < 0, "the attack itself does not work: mend the test"
    # The program beside it is served instead.
    session = ptl.RUNTIME.open(ModelSource(path))
    assert session.run({"x": np.ones(3, np.float32)})["output_0"] == 15
    without = build(
        here / "b.ptl",
        lambda members: (OUT_OF_BOUNDS[what](members), without_code(members)),
        Outer(),
    )
    with pytest.raises(ModelLoadError):
        ptl.RUNTIME.open(ModelSource(without))


def test_a_repeated_object_is_made_once(here: Path):
    twice = build(
        here / "a.ts",
        lambda members: members.update({"data.pkl": members["data.pkl"][:-1] + b"}b."}),
    )
    with pytest.raises(ModelLoadError, match="made twice"):
        torch_archive.Archive(torch, twice).pickled_classes("data")


# --- Source locations, which PyTorch reads when a run fails


class _Whole:
    """A list of integers as PyTorch pickles it."""

    def __init__(self, *items: int) -> None:
        self.items = list(items)

    def __reduce__(self) -> tuple[Any, ...]:
        from torch.jit import _pickle

        return _pickle.build_intlist, (self.items,)


def placed(*pieces: int, start: int = 0, end: int = 1) -> Change:
    record = (
        "FORMAT_WITH_STRING_TABLE",
        ("text\n", "file"),
        ((0, ((_Whole(*pieces), 1, 0), start, end), 0),),
    )

    def change(members: Members) -> None:
        members["code/__torch__.py.debug_pkl"] = pickle.dumps(record, protocol=2)

    return change


class Picky(torch.nn.Module):
    def forward(self, x):
        return x + torch.ones(3)


Picky.__module__ = "__main__"


@pytest.mark.parametrize("suffix", [".ts", ".ptl"])
def test_source_locations_outside_their_text_are_refused(here: Path, suffix: str):
    path = build(here / f"a{suffix}", placed(10**9), Picky())
    assert ending(path, "full") < 0, "the attack itself does not work: mend the test"
    refused(path, "in a text that is not there")
    refused(
        build(here / f"b{suffix}", placed(0, start=500), Picky()), "outside of its text"
    )
    refused(
        build(here / f"c{suffix}", placed(*[0] * 1_000_001), Picky()), "too many lines"
    )
    good = build(here / f"d{suffix}", placed(0), Picky())
    runtime = ptl.RUNTIME if suffix == ".ptl" else torchscript.RUNTIME
    assert runtime.open(ModelSource(good)).run({"x": np.ones(3, np.float32)})[
        "output_0"
    ].tolist() == [2, 2, 2]


# --- Files that must be served

LSTM = torch.nn.LSTM(8, 8)
ORDINARY: Mapping[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "a linear layer": (lambda: torch.nn.Linear(8, 2), (2, 8)),
    "convolutions": (
        lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)),
        (1, 3, 8, 8),
    ),
    "a recurrent layer": (lambda: torch.nn.Sequential(LSTM), (4, 1, 8)),
    "attention": (lambda: torch.nn.TransformerEncoderLayer(8, 2), (4, 1, 8)),
    "resampling": (
        lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear"),
        (1, 3, 4, 4),
    ),
    "quantised weights": (
        lambda: quantised(torch.nn.Sequential(torch.nn.Linear(8, 2))),
        (2, 8),
    ),
}


def quantised(module: Any) -> Any:
    return torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear})


# Old spellings in PyTorch itself.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "way", ["scripted", "traced", "frozen", "mobile", "frozen mobile"]
)
@pytest.mark.parametrize("what", ORDINARY)
def test_ordinary_programs_are_served(here: Path, what: str, way: str):
    make, shape = ORDINARY[what]
    module = make().eval()
    x = torch.arange(float(np.prod(shape))).reshape(shape) / 100
    script = (
        torch.jit.trace(module, x, check_trace=False)
        if way == "traced"
        else torch.jit.script(module)
    )
    if "frozen" in way:
        script = torch.jit.freeze(script)
    path = here / ("a.ptl" if "mobile" in way else "a.ts")
    script._save_for_lite_interpreter(str(path)) if "mobile" in way else script.save(
        str(path)
    )
    session = (ptl.RUNTIME if "mobile" in way else torchscript.RUNTIME).open(
        ModelSource(path)
    )
    got = session.run({spec.name: x.numpy() for spec in session.inputs})
    wanted = module(x)
    if isinstance(wanted, tuple):
        wanted = wanted[0]
    np.testing.assert_allclose(
        next(iter(got.values())), wanted.detach().numpy(), rtol=1e-4, atol=1e-5
    )


# --- Consent


@pytest.mark.parametrize("suffix", [".ts", ".ptl"])
def test_a_trusted_file_is_run(here: Path, suffix: str):
    runtime = ptl.RUNTIME if suffix == ".ptl" else torchscript.RUNTIME
    path = build(here / f"a{suffix}", lambda members: None, Writer())
    with pytest.raises(
        ModelLoadError,
        match=r"calls aten::save.*`pocketserve trust .*asks for your consent",
    ):
        runtime.open(ModelSource(path))
    with pytest.raises(ModelLoadError, match="is code that is not trusted"):
        runtime.open(ModelSource(path, trusted=frozenset({"0" * 64})))
    assert not Path(WRITTEN).exists()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    runtime.open(ModelSource(path, trusted=frozenset({digest}))).run(
        {"x": np.ones(3, np.float32)}
    )
    assert Path(WRITTEN).exists()
