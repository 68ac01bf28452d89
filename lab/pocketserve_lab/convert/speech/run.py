"""Convert an unconverted Whisper model to ONNX, and publish it."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pocketserve import __version__
from pocketserve.repository.files import content_digest, file_bytes
from pocketserve.repository.samples import FOLDER as SAMPLES
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import sidecar_files
from pocketserve.runtimes.speech.files import ENCODER, SUFFIX
from pocketserve_lab.compare.samples import Facts, SampleError, select_samples
from pocketserve_lab.convert import verify
from pocketserve_lab.convert.converter import ConversionError, Converter
from pocketserve_lab.convert.process import Job, run_job
from pocketserve_lab.convert.publish import (
    NewVersion,
    check_writable,
    choose_name,
    model_folder,
    publish,
)
from pocketserve_lab.convert.run import Conversion, ModelConverter

KIND: Final = "onnx"
FORMAT: Final = "whisper-torch"
MODES: Final = ("none", "dynamic")
MAX_SAMPLES: Final = 16
TOOL: Final = Converter(
    name="whisper-onnx",
    sources=(FORMAT,),
    kind=KIND,
    module="pocketserve_lab.convert.speech.tool",
    quantize=MODES,
    packages=("torch", "onnx", "onnxruntime"),
    fallback="pytorch",
)


def speech_source(entry: ModelEntry, version: str | None) -> VersionEntry | None:
    """Return the Whisper weights to convert; None if the model has none."""
    if version is not None:
        source = entry.versions[version]
        return source if source.format.name == FORMAT else None
    for candidate in entry.versions.values():
        if candidate.format.name == FORMAT and candidate.problem is None:
            return candidate
    return None


class SpeechConverter(ModelConverter):
    """Converts Whisper, whose result is a folder with an encoder and a decoder."""

    def convert(self, kind: str, quantize: str | None = None) -> Conversion:
        """Make a new version and publish it.

        Raises:
            ConversionError: the conversion is not possible, or the result differs from
                the original; everything is cleaned up.
        """
        mode = quantize or self._settings.quantize
        source = speech_source(self._entry, self._settings.version)
        assert source is not None
        if kind != KIND or mode not in MODES:
            raise ConversionError(
                "Whisper can only become ONNX, unchanged or with int8 weights",
                nearest=f"--to {KIND} or --to {KIND} --quantize dynamic",
            )
        new = self._choose_place(source, mode)
        check_writable(self._entry)
        samples = self._sound_files()
        output = self._prepared_folder(source)
        facts = self._run_speech_tool(
            source,
            output,
            mode,
            samples,
        )
        conversion = _checked_conversion(
            new,
            source,
            output,
            facts,
        )
        provenance = _provenance_of(conversion, source, mode)
        path = publish(
            self._entry,
            source.name,
            output,
            new,
            provenance,
        )
        return conversion._replace(path=path)

    def _choose_place(self, source: VersionEntry, mode: str) -> NewVersion:
        """Return the new version, in a folder of its name."""
        new = choose_name(
            self._entry,
            source.name,
            KIND,
            mode,
            self._settings.name,
        )
        folder = new.name
        if folder == SAMPLES:
            raise ConversionError(
                f"{SAMPLES} has the model's samples; use another --name"
            )
        if not new.replaces and (model_folder(self._entry) / folder).exists():
            raise ConversionError(
                f"{folder} is in the model's folder already; remove it, or use --name"
            )
        return new._replace(file=folder, main=f"{ENCODER}{SUFFIX}")

    def _sound_files(self) -> list[Path]:
        data = self._data()
        if data is None:
            return []
        facts = Facts("speech-to-text")
        try:
            samples = select_samples(data, facts, MAX_SAMPLES)
        except SampleError as error:
            raise ConversionError(str(error)) from None
        files = []
        for sample in samples:
            if isinstance(sample.body, bytes):
                raise ConversionError(f"the sample {sample.name} is not a sound file")
            files.append(sample.body)
        return files

    def _prepared_folder(self, source: VersionEntry) -> Path:
        """Return a folder with the files of the task."""
        output = self._folder() / "whisper"
        output.mkdir()
        for file in sidecar_files(self._entry, source):
            if file.parent == source.path.parent and file.suffix == ".json":
                shutil.copyfile(file, output / file.name)
        return output

    def _run_speech_tool(
        self, source: VersionEntry, output: Path, mode: str, samples: list[Path]
    ) -> dict[str, Any]:
        python = self._python(TOOL)
        document = {
            "source": str(source.path.absolute()),
            "output": str(output),
            "quantize": mode,
            "samples": [str(path.absolute()) for path in samples],
        }
        job = Job(
            TOOL.name,
            python,
            TOOL.module,
            document,
            output.parent,
        )
        title = f"{TOOL.name}: {source.name} to {KIND}"
        limits = self._settings.limits
        return run_job(job, limits, lambda: self._tell(title, 0.0))


def _checked_conversion(
    new: NewVersion, source: VersionEntry, output: Path, facts: Mapping[str, Any]
) -> Conversion:
    """Return a conversion that is not published yet.

    Args:
        facts: the tool's.
    """
    count = facts["samples"]
    agreement = verify.Agreement(
        facts["error"],
        facts["largest"],
        None,
        count,
    )
    return Conversion(
        kind=KIND,
        version=new.name,
        path=output,
        source=source.name,
        source_bytes=file_bytes(source),
        result_bytes=_bytes_of(output),
        tools=tuple(facts["tools"]),
        agreement=agreement,
        random=not count,
        notes=(),
    )


def _bytes_of(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        if path.suffix != ".json":
            total += path.stat().st_size
    return total


def _provenance_of(
    conversion: Conversion, source: VersionEntry, mode: str
) -> dict[str, Any]:
    assert conversion.agreement is not None
    return {
        "source": conversion.source,
        "source_sha256": content_digest(source),
        "tools": list(conversion.tools),
        "quantize": mode,
        "made_by": f"pocketserve {__version__}",
        "date": datetime.date.today().isoformat(),
        "samples": conversion.agreement.samples,
        "difference": float(f"{conversion.agreement.error:.3g}"),
    }
