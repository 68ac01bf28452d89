"""Sessions of Hugging Face folders: an engine's process that runs transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.hugging_face.folder import FolderHeader, read_folder
from pocketserve.runtimes.hugging_face.library import LIBRARY_BYTES, check_library
from pocketserve.runtimes.llm.memory import ContextPlan, plan_context
from pocketserve.runtimes.llm.options import GenerationOptions
from pocketserve.runtimes.llm.process import SOCKET_NAME
from pocketserve.runtimes.llm.session import ALIAS, LlmSession
from pocketserve.runtimes.llm.settings import BATCH, EngineSettings


class FolderRuntime:
    """Opens Hugging Face folders."""

    platform = "transformers"
    option_keys: frozenset[str] = frozenset()

    def open(self, source: ModelSource) -> LlmSession:
        name = source.original.parent.name
        try:
            header = read_folder(source.path)
        except (DamagedFileError, ModelLoadError) as error:
            raise ModelLoadError(f"{name}: {error}") from error
        options = source.sections.get(GenerationOptions) or GenerationOptions()
        if options.cache not in (None, "f16"):
            raise ModelLoadError(
                f"model.toml: generation.cache can't be {options.cache} for a Hugging"
                " Face folder, whose cache has the type of its weights; leave it out"
            )
        check_library()
        plan = plan_context(header, options, source.memory_budget, LIBRARY_BYTES)
        settings = _settings(source, header, plan)
        return LlmSession(header, options, plan, settings, name)


def folder_bytes(path: Path, sections: Mapping[type, Any], budget: int) -> int:
    """Return the memory that a model will take; 0 where it can't be read.

    Raises:
        ApiError: MEMORY_BUDGET, it can't fit into the budget.
    """
    options = sections.get(GenerationOptions) or GenerationOptions()
    try:
        header = read_folder(path)
    except (DamagedFileError, ModelLoadError):
        return 0  # the load reports the fault
    return plan_context(header, options, budget, LIBRARY_BYTES).memory_bytes


def _settings(
    source: ModelSource, header: FolderHeader, plan: ContextPlan
) -> EngineSettings:
    return EngineSettings(
        program="",
        model=str(source.path.parent),
        socket=SOCKET_NAME,
        alias=ALIAS,
        context=plan.context,
        cache=plan.cache,
        threads=source.threads,
        batch=min(BATCH, plan.context),
        dtype=header.dtype,
        # The file is mapped while its weights are copied.
        load_bytes=header.file_bytes,
    )


RUNTIME = FolderRuntime()
