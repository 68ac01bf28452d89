"""Find the models of a folder with names and versions, despite broken entries."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketserve.repository import scan as scan_module
from pocketserve.repository.scan import MAX_VERSIONS, ModelEntry, Models, locate, scan
from pocketserve.runtimes.model_format import ModelFormat
from pocketserve.runtimes.registry import FORMATS, MARKERS, SUFFIXES

REPOSITORY_MODELS = Path(__file__).resolve().parents[2] / "models"


def fill(root: Path, *files: str, **manifests: str) -> Path:
    """Create empty files, and the manifests of the named folders."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    for folder, content in manifests.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "model.toml").write_text(content, encoding="utf-8")
    return root


def versions(entry: ModelEntry) -> dict[str, str]:
    """Return files by version."""
    return {name: version.path.name for name, version in entry.versions.items()}


def test_an_empty_folder(tmp_path: Path) -> None:
    """No models is no error."""
    assert scan(tmp_path) == {}


def test_a_missing_folder(tmp_path: Path) -> None:
    """A missing folder or a file cannot be served."""
    with pytest.raises(OSError, match="nowhere"):
        scan(tmp_path / "nowhere")
    fill(tmp_path, "file")
    with pytest.raises(OSError, match="file"):
        scan(tmp_path / "file")


def test_bare_files(tmp_path: Path) -> None:
    """A model file is a model named after it.

    Its version is its kind. Models are in alphabetical order.
    """
    models = scan(
        fill(
            tmp_path,
            "b.tflite",
            "a.TFLITE",
            "notes.txt",
            "script.py",
            "model.py",
            "c.v2.tflite",
        )
    )
    assert list(models) == ["a", "b", "c.v2"]
    assert versions(models["b"]) == {"tflite": "b.tflite"}
    entry = models["b"]
    assert entry.default_version == "tflite"
    assert entry.folder == tmp_path
    assert entry.problem is None
    assert entry.versions["tflite"].problem is None


def test_files_with_invalid_model_names(tmp_path: Path) -> None:
    """It is skipped and reported, so that the user renames it."""
    fill(
        tmp_path,
        "my digits.tflite",
        "a b/model.onnx",
        "my notes/x.txt",
        "my notes.txt",
        ".m .tflite",
        "m.tflite",
    )
    fill(tmp_path, "stats/m.tflite", "stats.tflite", "x?/y.txt", **{"c d": ""})
    models = scan(tmp_path)
    assert list(models) == models.present() == ["m"]
    assert models.misnamed == (
        "a b",
        "c d",
        "my digits.tflite",
        "stats",
        "stats.tflite",
    )


def test_names_are_listed_without_reading_manifests(tmp_path: Path) -> None:
    """Names are available before manifests are read, and exclude folders without
    models.
    """
    fill(
        tmp_path,
        "a/m.tflite",
        "notes/x.txt",
        "b.tflite",
        "n/1/m.tflite",
        "w/model.safetensors",
        broken="[",
    )
    models = Models(tmp_path)
    assert models.present() == list(scan(tmp_path)) == ["a", "b", "broken", "n", "w"]


def test_names_beside_an_inaccessible_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hides no other and does not prevent a start.

    Reading it gives the reason.
    """
    fill(tmp_path, "shut/m.tflite", "m.tflite")
    real = os.stat

    def stat(path: os.PathLike[str] | str, **options: bool) -> os.stat_result:
        if Path(path).parent.name == "shut":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    models = Models(tmp_path)
    monkeypatch.setattr(os, "stat", stat)
    assert models.present() == ["m", "shut"]


def test_the_folder_of_one_model_can_be_scanned(tmp_path: Path) -> None:
    fill(
        tmp_path,
        "m/saved_model.pb",
        "n/one.onnx",
        "n/two.onnx",
        "n/m/model.toml",
        "bare.onnx",
        "bare/x.onnx",
    )
    (tmp_path / "n" / "model.toml").write_text('[versions.first]\nfile = "one.onnx"\n')

    def found(path: str) -> dict[str, list[str]]:
        models = scan(*locate(tmp_path / path))
        return {name: list(entry.versions) for name, entry in models.items()}

    assert found("m") == {"m": ["savedmodel"]}, "a folder that is a model by its layout"
    assert found("n") == found("n/one.onnx") == {"n": ["first"]}, (
        "a folder with a manifest, and a file that it lists"
    )
    assert found("n/two.onnx") == {"two": ["onnx"]}, (
        "a file that the manifest beside it does not list"
    )
    assert found("bare.onnx") == {"bare": ["onnx"]}, (
        "a file beside a folder of its name"
    )
    assert found("bare") == {"x": ["onnx"]}, "a folder of models"
    root, only = locate(tmp_path / "bare.onnx")
    (tmp_path / "bare.onnx").unlink()
    assert not scan(root, only), "the file has gone meanwhile"


def test_two_kinds_with_one_stem(tmp_path: Path) -> None:
    """Files that differ only in their kind are versions of one model.

    A servable one is the default.
    """
    entry = scan(fill(tmp_path, "m.keras", "m.onnx", "m.tflite"))["m"]
    assert versions(entry) == {
        "keras": "m.keras",
        "onnx": "m.onnx",
        "tflite": "m.tflite",
    }
    assert entry.default_version == "tflite"


@pytest.mark.parametrize(
    "kind",
    [kind for kind in FORMATS if kind.claims is None],  # others need several files
    ids=lambda kind: kind.name,
)
def test_every_kind(tmp_path: Path, kind: ModelFormat) -> None:
    """Endings and marker files determine the kind."""
    names = [f"model{suffix}" for suffix in kind.suffixes]
    names += [marker for marker, known in MARKERS.items() if known is kind]
    models = scan(
        fill(tmp_path, *[f"f{number}/{name}" for number, name in enumerate(names)])
    )
    assert len(models) == len(names) > 0
    found = [
        version for entry in models.values() for version in entry.versions.values()
    ]
    facts = [(version.format, version.name, version.problem) for version in found]
    assert facts == [(kind, kind.name, None)] * len(names)


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".py"])
def test_every_ending_of_a_bare_file(tmp_path: Path, suffix: str) -> None:
    """The ending is removed from the name, in capitals too."""
    assert list(scan(fill(tmp_path, f"a.b{suffix}", f"C{suffix.upper()}"))) == [
        "C",
        "a.b",
    ]


def test_parts_of_folders_are_no_bare_models(tmp_path: Path) -> None:
    """A file that marks a model folder is not a model by itself."""
    assert scan(fill(tmp_path, *MARKERS)) == {}


def test_content_overrides_the_ending(tmp_path: Path) -> None:
    """A file with a wrong ending keeps its name.

    It is opened as its real kind.
    """
    (tmp_path / "m.onnx").write_bytes(b"\x1c\0\0\0TFL3")
    (tmp_path / "n.tflite").write_bytes(b"no such start")
    models = scan(tmp_path)
    assert {
        name: [v.format.name for v in entry.versions.values()]
        for name, entry in models.items()
    } == {
        "m": ["tflite"],
        "n": ["tflite"],
    }


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_does_not_block_a_scan(tmp_path: Path) -> None:
    """Reading from a named pipe could block forever."""
    os.mkfifo(fill(tmp_path, "good.tflite", "m/m.tflite") / "pipe.tflite")
    os.mkfifo(tmp_path / "m" / "pipe.tflite")
    assert {"good", "m"} <= set(scan(tmp_path))


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    """Its model files are versions.

    Each is named by the text between the model's name and the ending.
    """
    files = ["m.tflite", "m.int8.tflite", "model.py", "readme.md", "other.tflite"]
    entry = scan(fill(tmp_path, *[f"m/{file}" for file in files]))["m"]
    assert versions(entry) == {
        "tflite": "m.tflite",
        "tflite-int8": "m.int8.tflite",
        "torch": "model.py",
        "tflite-other": "other.tflite",
    }
    assert (entry.default_version, entry.folder) == ("tflite", tmp_path / "m")


@pytest.mark.parametrize(
    ("files", "names"),
    [
        # An only file of a kind is named by the kind.
        (
            ["vit4x.ptl", "vit4x.tflite"],
            ["ptl", "tflite"],
        ),
        (["mobilenet.tflite"], ["tflite"]),
        (["mnist.tflite", "mnist_int8.tflite"], ["tflite", "tflite-int8"]),
        # "obilenet" is not a version.
        (
            ["m.onnx", "mobilenet.onnx"],
            ["onnx", "onnx-mobilenet"],
        ),
        (["model.onnx", "model_fp16.onnx"], ["onnx", "onnx-fp16"]),
        (["mnist.h5", "mnist.keras"], ["keras", "keras-keras"]),
        (["a.tflite", "b.tflite"], ["tflite", "tflite-b"]),
    ],
)
def test_versions_are_named_by_their_difference(
    tmp_path: Path, files: list[str], names: list[str]
) -> None:
    assert (
        sorted(versions(scan(fill(tmp_path, *[f"m/{file}" for file in files]))["m"]))
        == names
    )


def test_a_folder_without_models(tmp_path: Path) -> None:
    """A folder of other files is not a model."""
    assert (
        scan(fill(tmp_path, "photos/a.png", "recipes/train.py", "deep/er/m.tflite"))
        == {}
    )


def test_models_in_a_folder_named_by_their_kind(tmp_path: Path) -> None:
    """Hugging Face's exporter uses this layout.

    Files beside the folder have priority.
    """
    fill(
        tmp_path,
        "m/config.json",
        "m/onnx/model.onnx",
        "m/onnx/model_quantized.onnx",
        "m/onnx/model.onnx_data",
    )
    fill(tmp_path, "n/onnx/model.onnx", "n/n.tflite", "o/images/model.onnx")
    found = scan(tmp_path)
    assert versions(found["m"]) == {
        "onnx": "model.onnx",
        "onnx-quantized": "model_quantized.onnx",
    }
    assert found["m"].default_version == "onnx"
    assert versions(found["n"]) == {"tflite": "n.tflite"}
    assert "o" not in found


@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin"],
)
def test_weights_without_a_model(tmp_path: Path, file: str) -> None:
    """A folder saved by Hugging Face is listed with the missing file."""
    fill(tmp_path, "m/config.json", f"m/{file}", "n/data.bin")
    found = scan(tmp_path)
    assert list(found) == ["m"]
    assert found["m"].versions == {}
    assert f"m holds weights ({file}) without a model: add a model.py" in str(
        found["m"].problem
    )


@pytest.mark.parametrize(
    ("file", "name", "words"),
    [
        (
            "bert.safetensors",
            "bert",
            "holds weights without a model: put it into a folder with a model.py",
        ),
        ("m.zip", "m", "is an archive: unpack it"),
        ("M.TAR", "M", "is an archive: unpack it"),
        ("m.v1.tar.gz", "m.v1", "is an archive: unpack it"),
        (
            "frozen_graph.pb",
            "frozen_graph",
            "is a frozen TensorFlow graph or a part of a model: convert it",
        ),
        (
            "epoch=3.ckpt",
            "epoch=3",
            "holds weights without a model: put it into a folder with a model.py",
        ),
        (
            "ckpt-1.data-00000-of-00001",
            "ckpt-1",
            "is a TensorFlow checkpoint, weights without a model: save",
        ),
        ("Tiny.Q4_K.ggml", "Tiny.Q4_K", "is a language model for an engine of its own"),
        (
            "iris.joblib",
            "iris",
            "is a pickle, which is code and is never opened: convert the model to ONNX",
        ),
        (
            "net.mlmodel",
            "net",
            "is a Core ML model, which only Apple's devices run: export",
        ),
        (
            "net.engine",
            "net",
            "was compiled by TensorRT for one kind of NVIDIA's cards: serve the ONNX model",
        ),
        (
            "net.plan",
            "net",
            "was compiled by TensorRT for one kind of NVIDIA's cards: serve the ONNX model",
        ),
        (
            "net.dlc",
            "net",
            "was compiled for one kind of device: serve the ONNX or TFLite model",
        ),
        ("net.nnef.tgz", "net", "is a model for Tract: serve the ONNX model"),
        ("net.tflite.gz", "net.tflite", "is an archive: unpack it"),
        (
            "net.onnx.crdownload",
            "net.onnx",
            "is a download that has not finished: fetch the file again",
        ),
        (
            "net.ort",
            "net",
            "is an ONNX model in ONNX Runtime's own format: serve the .onnx file",
        ),
    ],
)
def test_bare_files_that_need_a_conversion(
    tmp_path: Path, file: str, name: str, words: str
) -> None:
    """Each is listed with the next step."""
    found = scan(fill(tmp_path, file, "." + file, "readme.md", "a b.zip"))
    assert list(found) == [name]
    assert found[name].versions == {}
    assert str(found[name].problem).startswith(f"{file} {words}")


def zipped(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(f"archive/{name}", b"")


@pytest.mark.parametrize("ending", ["pth", "pt", "ts", "ptl"])
def test_weights_with_a_models_ending(tmp_path: Path, ending: str) -> None:
    """Output of torch.save is unavailable.

    It may be a bare file, lie in a folder, or be named by a manifest.
    """
    (tmp_path / "m").mkdir()
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "model.toml").write_text(
        f'[versions]\nv = {{ file = "old.{ending}" }}\n'
    )
    zipped(tmp_path / f"new.{ending}", "data.pkl", "data/0", "version")
    zipped(tmp_path / "m" / f"new.{ending}", "data.pkl", "data/0", "version")
    for old in (tmp_path / f"old.{ending}", tmp_path / "n" / f"old.{ending}"):
        old.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    found = scan(tmp_path)
    assert set(found) == {"new", "old", "m", "n"}
    for entry in found.values():
        (version,) = entry.versions.values()
        assert (
            "holds weights without a model, or a pickled module, which is code"
            in str(version.problem)
        )


def test_compiled_packages(tmp_path: Path) -> None:
    zipped(tmp_path / "a.pt2", "data/aotinductor/model/a.so", "archive_format")
    (version,) = scan(tmp_path)["a"].versions.values()
    assert "a.pt2 holds native code compiled by AOTInductor" in str(version.problem)


def test_two_files_that_form_a_model_of_another_kind(tmp_path: Path) -> None:
    """A common ending counts only with its counterpart."""
    found = scan(
        fill(
            tmp_path,
            "a.xml",
            "a.bin",
            "b.xml",
            "c.bin",
            "d.param",
        )
    )
    assert list(found) == ["a"]
    assert str(found["a"].problem).startswith(
        "a.xml is an OpenVINO model, which is not served: serve"
    )


def test_folders_with_other_contents(tmp_path: Path) -> None:
    """A folder meant as a model lists its contents.

    Archives and downloads may be anything.
    """
    fill(
        tmp_path,
        "a/frozen_graph.pb",
        "a/notes.txt",
        "b.mlpackage/Manifest.json",
        "c/photos.zip",
        "d/.net.ggml",
    )
    found = scan(tmp_path)
    assert list(found) == ["a", "b.mlpackage"]
    assert str(found["a"].problem).startswith(
        "a/frozen_graph.pb is a frozen TensorFlow graph"
    )
    assert str(found["b.mlpackage"].problem).startswith(
        "b.mlpackage is a Core ML model"
    )


@pytest.mark.parametrize(
    "file", ["m.tflite", "m.onnx", "m.pt", "m.keras", "m.h5", "m.pte", "m.ptl", "m.pt2"]
)
def test_placeholders_of_incomplete_downloads(tmp_path: Path, file: str) -> None:
    """The model is not broken, only not downloaded."""
    (tmp_path / file).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
    )
    (tmp_path / f"page.{file}").write_text(
        "\n<!DOCTYPE html>\n<html><title>Sign in</title></html>"
    )
    found = scan(tmp_path)
    pointer, page = (
        next(iter(found[name].versions.values())).problem for name in ("m", "page.m")
    )
    assert pointer == (
        f"{file} is only a pointer of Git LFS: run git lfs pull in the clone, or download the file itself"
    )
    assert (
        page
        == f"page.{file} is a web page instead of the model: download the file itself"
    )


def test_an_archive_beside_its_contents(tmp_path: Path) -> None:
    """A model of that name has priority.

    A folder of other files does not.
    """
    found = scan(
        fill(
            tmp_path, "m.zip", "m/m.tflite", "n.tar", "n.tflite", "o.zip", "o/readme.md"
        )
    )
    assert versions(found["m"]) == {"tflite": "m.tflite"}
    assert versions(found["n"]) == {"tflite": "n.tflite"}
    assert str(found["o"].problem).startswith("o.zip is an archive")


def test_a_pickle_beside_its_conversion(tmp_path: Path) -> None:
    """The pickle is a version that is not served.

    Unrelated and undeclared pickles are none.
    """
    files = [
        "iris.joblib",
        "iris.onnx",
        "m/a.pkl",
        "m/a.onnx",
        "m/scaler.pkl",
        "m/a.int8.onnx",
        "n/a.onnx",
        "n/a.pkl",
    ]
    models = scan(fill(tmp_path, *files, n='versions.v.file = "a.onnx"'))
    assert {name: list(entry.versions) for name, entry in models.items()} == {
        "iris": ["onnx", "joblib"],
        "m": ["onnx-int8", "onnx", "pkl"],
        "n": ["v"],
    }
    assert models["iris"].default_version == models["m"].default_version == "onnx"
    assert "a.pkl is a pickle, which is code" in str(
        models["m"].versions["pkl"].problem
    )


def test_a_folder_with_a_manifest(tmp_path: Path) -> None:
    """The manifest declares the versions, and other files are none."""
    toml = 'default_version = "b"\n[versions.a]\nfile = "a.tflite"\nxnnpack = true\n[versions.b]\nfile = "sub/b.tflite"'
    entry = scan(fill(tmp_path, "m/a.tflite", "m/sub/b.tflite", "m/c.tflite", m=toml))[
        "m"
    ]
    assert versions(entry) == {"a": "a.tflite", "b": "b.tflite"}
    assert entry.default_version == "b"
    assert entry.versions["a"].options == {"xnnpack": True}
    assert all(version.problem is None for version in entry.versions.values())


def test_a_manifest_without_versions(tmp_path: Path) -> None:
    """Without declared versions, the folder's files are the versions."""
    entry = scan(fill(tmp_path, "m/m.tflite", m='description = "d"'))["m"]
    assert versions(entry) == {"tflite": "m.tflite"}
    assert entry.manifest.description == "d"


def test_a_manifest_without_models(tmp_path: Path) -> None:
    """A manifest announces a model, so its missing file is an error."""
    entry = scan(fill(tmp_path, m=""))["m"]
    assert (entry.versions, entry.default_version) == ({}, "")
    assert "m/model.toml: the folder holds no model file" in str(entry.problem)


def test_numbered_versions(tmp_path: Path) -> None:
    """In Triton's layout, the highest number is the default."""
    entry = scan(
        fill(
            tmp_path,
            "m/1/model.tflite",
            "m/2/model.tflite",
            "m/10/model.tflite",
            "m/best/a.tflite",
        )
    )["m"]
    assert sorted(entry.versions) == ["1", "10", "2"]
    assert entry.default_version == "10"
    assert entry.versions["10"].path == tmp_path / "m" / "10" / "model.tflite"


def test_numbered_versions_with_leading_zeros(tmp_path: Path) -> None:
    """The folder's name is the version's, in manifests too.

    Of equal numbers, the padded one is served.
    """
    said = 'default_version = "0002"'
    entry = scan(
        fill(tmp_path, "m/00000123/a.tflite", "m/0002/b.tflite", "m/2/c.tflite", m=said)
    )["m"]
    assert versions(entry) == {"123": "a.tflite", "2": "b.tflite"}
    assert entry.default_version == "2"


def test_numbered_versions_contain_one_model(tmp_path: Path) -> None:
    """An empty number is not a version.

    Two files in one number are ambiguous.
    """
    entry = scan(
        fill(
            tmp_path,
            "m/1/a.tflite",
            "m/1/b.tflite",
            "m/2/notes.txt",
            "m/3/.a.tflite",
            "m/3/b.tflite",
        )
    )["m"]
    assert "holds 2 models" in str(entry.versions["1"].problem)
    assert versions(entry) == {"1": "a.tflite", "3": "b.tflite"}


@pytest.mark.parametrize("digit", ["²", "①"])
def test_digits_that_are_no_numbers(tmp_path: Path, digit: str) -> None:
    """Digits that are not decimal are no numbers."""
    toml = f'[versions."{digit}"]\nfile = "m.tflite"'
    models = scan(
        fill(tmp_path, f"m/{digit}/m.tflite", "m/1/m.tflite", "n/m.tflite", n=toml)
    )
    assert list(models["m"].versions) == ["1"]
    assert models["n"].default_version == digit


def test_a_folder_has_priority_over_a_bare_file(tmp_path: Path) -> None:
    """A folder and a bare file have the same name."""
    assert versions(scan(fill(tmp_path, "m.keras", "m/1/m.tflite"))["m"]) == {
        "1": "m.tflite"
    }


def test_hidden_entries_are_skipped(tmp_path: Path) -> None:
    """They are skipped at every level, since other systems leave such files."""
    files = [
        ".a.tflite",
        ".trash/a.tflite",
        "m/m.tflite",
        "m/._m.tflite",
        "m/.1/m.tflite",
        "h/.h.tflite",
    ]
    models = scan(fill(tmp_path, *files))
    assert list(models) == ["m"]
    assert versions(models["m"]) == {"tflite": "m.tflite"}


@pytest.mark.parametrize(
    "name", ["stats", "a b", "a%2fb", "50%", "a:b", "a\\b", "a?b", "a#b", "a\nb"]
)
def test_invalid_names_are_no_models(tmp_path: Path, name: str) -> None:
    """Folders and bare files with names invalid in URL paths are no models."""
    assert list(
        scan(fill(tmp_path, f"{name}/m.tflite", f"{name}.tflite", "good.tflite"))
    ) == ["good"]


def test_names_that_are_not_utf8_are_skipped(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.tflite", "wb"):
        pass
    assert scan(tmp_path) == {}


BROKEN = {
    'tasks = "tensors"': ["m/model.toml", "unknown key tasks", "did you mean 'task'?"],
    "threads = 0": ["m/model.toml", "threads", "from 1 to 256"],
    "[image]\nmean = 'x'": ["m/model.toml", "image.mean", "numbers"],
    "[versions.a]": ["m/model.toml", "versions.a.file", "name the model file"],
    "[versions.a]\nfile = '../other.tflite'": [
        "m/model.toml",
        "versions.a.file",
        "inside the model's folder",
    ],
    "= 1": ["m/model.toml", "not valid TOML", "line 1"],
    "threads = " + "9" * 5000: ["m/model.toml", "digits"],
}


@pytest.mark.parametrize("toml", BROKEN, ids=lambda toml: toml[:20])
def test_a_broken_manifest_is_listed(tmp_path: Path, toml: str) -> None:
    """It shows file, key and fix.

    The other models are served.
    """
    models = scan(fill(tmp_path, "m/m.tflite", "n/n.tflite", m=toml))
    entry = models["m"]
    assert (entry.versions, entry.default_version) == ({}, "")
    assert all(part in str(entry.problem) for part in BROKEN[toml])
    assert versions(models["n"]) == {"tflite": "n.tflite"}


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (
            "gone.tflite",
            "m/model.toml: versions.a.file names gone.tflite, which does not exist",
        ),
        ("gone", "m/model.toml: versions.a.file names gone, which does not exist"),
        (
            "labels.txt",
            "m/model.toml: versions.a.file is not a model (.tflite, .lite, .onnx",
        ),
        ("dir.tflite", "m/model.toml: versions.a.file is not a model"),
        (".", "m/model.toml: versions.a.file is not a model"),
    ],
)
def test_a_declared_file_that_cannot_be_served(
    tmp_path: Path, file: str, problem: str
) -> None:
    """The version is listed with its error.

    The others are served.
    """
    toml = f"[versions.a]\nfile = '{file}'\n[versions.b]\nfile = 'm.tflite'"
    entry = scan(
        fill(
            tmp_path,
            "m/m.tflite",
            "m/m.keras",
            "m/labels.txt",
            "m/dir.tflite/x",
            m=toml,
        )
    )["m"]
    assert problem in str(entry.versions["a"].problem)
    assert (entry.versions["b"].problem, entry.default_version) == (None, "b")


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path]:
    """Create a models folder, and a model in a folder outside it."""
    inside = tmp_path / "models"
    outside = tmp_path / "elsewhere"
    fill(inside, "real/1/m.tflite", "m/keep.txt")
    fill(outside, "m.tflite", "1/m.tflite")
    return inside, outside


def test_links_out_of_the_folder_are_rejected(linked: tuple[Path, Path]) -> None:
    """This covers files, declared files, numbered folders and whole models."""
    inside, outside = linked
    (inside / "bare.tflite").symlink_to(outside / "m.tflite")
    (inside / "folder").symlink_to(outside)
    (inside / "m" / "7").symlink_to(outside / "1")
    (inside / "m" / "x.tflite").symlink_to("../../elsewhere/m.tflite")
    fill(inside, declared="[versions.a]\nfile = 'a.tflite'")
    (inside / "declared" / "a.tflite").symlink_to(outside / "m.tflite")
    models = scan(inside)
    assert set(models) == {"real", "bare", "folder", "m", "declared"}
    refused = [
        version
        for name in models
        if name != "real"
        for version in models[name].versions.values()
    ]
    assert len(refused) == 6
    assert all(
        "a link that leaves the models folder" in str(version.problem)
        for version in refused
    )


def test_links_within_the_folder(linked: tuple[Path, Path]) -> None:
    """Links inside are followed, and the models folder can be a link."""
    inside, outside = linked
    (inside / "bare.tflite").symlink_to("real/1/m.tflite")
    (inside / "m" / "2").symlink_to(inside / "real" / "1")
    (outside / "models").symlink_to(inside)
    for root in (inside, outside / "models"):
        models = scan(root)
        assert [
            version.problem
            for entry in models.values()
            for version in entry.versions.values()
        ] == [None] * 3


def test_a_folder_with_the_same_name_prefix(tmp_path: Path) -> None:
    """``models-2`` is not inside ``models``."""
    fill(tmp_path / "models-2", "m.tflite")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.tflite").symlink_to(tmp_path / "models-2" / "m.tflite")
    assert "leaves the models folder" in str(
        scan(tmp_path / "models")["m"].versions["tflite"].problem
    )


def test_broken_links(tmp_path: Path) -> None:
    """A link to itself or to nothing does not affect other models."""
    fill(tmp_path, "good.tflite", "m/m.tflite")
    (tmp_path / "loop.tflite").symlink_to("loop.tflite")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nothing")
    (tmp_path / "m" / "1").symlink_to("1")
    (tmp_path / "m" / "model.toml").symlink_to("model.toml")
    models = scan(tmp_path)
    assert versions(models["good"]) == {"tflite": "good.tflite"}
    assert versions(models["m"]) == {"tflite": "m.tflite"}


@pytest.fixture
def not_root() -> Iterator[None]:
    """Drop root's rights, since root can read every folder."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_an_unreadable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """It is listed with its error and hides no other."""
    fill(tmp_path, "good.tflite", "m/m.tflite")
    tmp_path.chmod(0o755)
    (tmp_path / "m").chmod(0)
    monkeypatch.chdir(tmp_path)
    request.getfixturevalue("not_root")
    models = scan(Path())
    assert versions(models["good"]) == {"tflite": "good.tflite"}
    assert models["good"].versions["tflite"].problem is None
    assert models["m"].versions == {}
    assert (
        models["m"].problem
        == "the folder m cannot be read: Permission denied; chmod u+rx it"
    )


def test_a_folder_can_have_more_models_than_a_model_versions(tmp_path: Path) -> None:
    names = [f"big/f{number:05}.tflite" for number in range(MAX_VERSIONS)]
    fill(tmp_path, *names, "other.tflite")
    assert len(scan(tmp_path)["big"].versions) == MAX_VERSIONS
    fill(tmp_path, "big/one_more.tflite")
    entry = scan(tmp_path)["big"]
    assert not entry.versions
    assert entry.problem == (
        f"the folder big holds {MAX_VERSIONS + 1} models; a model has {MAX_VERSIONS} versions at most: list the ones "
        "to serve under [versions] in model.toml, or move the others to another folder"
    )
    assert list(scan(tmp_path)["other"].versions) == ["tflite"]
    fill(tmp_path, big='[versions]\nbest = { file = "f00007.tflite" }\n')
    assert versions(scan(tmp_path)["big"]) == {"best": "f00007.tflite"}


def test_too_many_versions_in_a_folder_of_one_format(tmp_path: Path) -> None:
    fill(
        tmp_path,
        *(f"big/onnx/model_{number}.onnx" for number in range(MAX_VERSIONS + 1)),
    )
    entry = scan(tmp_path)["big"]
    assert not entry.versions
    assert f"holds {MAX_VERSIONS + 1} models" in str(entry.problem)


def test_the_newest_of_too_many_numbered_versions_are_kept(tmp_path: Path) -> None:
    """One more version must not make the model unavailable."""
    fill(
        tmp_path,
        *(f"big/{number}/model.tflite" for number in range(1, MAX_VERSIONS + 3)),
    )
    entry = scan(tmp_path)["big"]
    assert sorted(entry.versions, key=int) == [
        str(number) for number in range(3, MAX_VERSIONS + 3)
    ]
    assert entry.default_version == str(MAX_VERSIONS + 2)


def test_the_work_for_one_folder_grows_linearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "MAX_VERSIONS", 1000)
    calls = 0

    def counted(stem: str, base: str) -> str | None:
        nonlocal calls
        calls += 1
        return suffix(stem, base)

    suffix = scan_module._suffix
    monkeypatch.setattr(scan_module, "_suffix", counted)
    fill(tmp_path, *(f"big/f{number}.tflite" for number in range(300)))
    assert len(scan(tmp_path)["big"].versions) == 300
    assert calls <= 2 * 300


def test_a_manifest_that_names_many_files_lists_their_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(
        f'v{number} = {{ file = "v{number}.zip" }}\n' for number in range(50)
    )
    fill(
        tmp_path,
        *(f"big/v{number}.zip" for number in range(50)),
        big=f"[versions]\n{lines}",
    )
    listings: list[Path] = []

    def listed(folder: Path) -> frozenset[str]:
        listings.append(folder)
        return frozenset(os.listdir(folder))

    monkeypatch.setattr(scan_module, "_names_in", listed)
    assert len(scan(tmp_path)["big"].versions) == 50
    assert listings == [tmp_path / "big"]


def test_a_link_to_a_parent_folder_is_no_model(tmp_path: Path) -> None:
    fill(tmp_path, "a.tflite", "m/1/m.tflite")
    (tmp_path / "self").symlink_to(".")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "m" / "2").symlink_to(".")
    (tmp_path / "m" / "3").symlink_to("../..")
    found = scan(tmp_path)
    assert list(found) == ["a", "m"]
    assert list(found["m"].versions) == ["1"]


def test_a_thousand_models(tmp_path: Path) -> None:
    """Many bare models are found, in order."""
    names = [f"m{number:04}" for number in range(1000)]
    models = scan(fill(tmp_path, *[f"{name}.tflite" for name in names]))
    assert list(models) == names
    assert all(entry.default_version == "tflite" for entry in models.values())


def test_the_models_of_this_repository() -> None:
    """They have no errors.

    The recipes beside them are no model.
    """
    models = scan(REPOSITORY_MODELS)
    assert list(models) == ["diabetes", "digits", "numbers", "petals"]
    assert [entry.problem for entry in models.values()] == [None] * 4
    assert models["digits"].manifest.labels == "labels.txt"
    defaults = [entry.versions[entry.default_version] for entry in models.values()]
    assert [version.problem for version in defaults] == [None] * 4
