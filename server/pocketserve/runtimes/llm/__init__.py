"""Language models in GGUF, run by llama.cpp in a process of their own."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat, Requirement, late

FORMATS = (
    ModelFormat(
        "gguf",
        "pocketserve.runtimes.llm.session",
        suffixes=(".gguf",),
        magic=((0, b"GGUF"),),
        main_file=late("pocketserve.formats.gguf_parts.first_part"),
        is_split=late("pocketserve.formats.gguf_split.is_split"),
        frameworks=(
            Requirement("xllamacpp", ".gguf language models", "xllamacpp", "llama-cpp"),
        ),
        missing=late(f"{__name__}.engines.missing_engine"),
        own_threads=True,
        confines_itself=True,
        program_folders=late(f"{__name__}.engines.program_folders"),
        other_files=late("pocketserve.formats.gguf_split.parts_beside"),
        properties=late(f"{__name__}.description.read_header_facts"),
        memory=late(f"{__name__}.memory.required_bytes"),
        task=late(f"{__name__}.description.gguf_task"),
    ),
)
