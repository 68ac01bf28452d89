"""Folders of the Hugging Face hub, each run by transformers in a process of its own."""

from __future__ import annotations

from pocketserve.runtimes.model_format import ModelFormat, Requirement, late

FORMATS = (
    ModelFormat(
        "transformers",
        "pocketserve.runtimes.hugging_face.session",
        file_starts=("config.json",),
        claims=late(f"{__name__}.folder.is_language_model"),
        by_name=True,
        frameworks=(
            Requirement(
                "transformers",
                "Hugging Face folders",
                "transformers",
            ),
        ),
        missing=late(f"{__name__}.library.missing_library"),
        own_threads=True,
        last_choice=True,
        confines_itself=True,
        other_files=late(f"{__name__}.folder.other_files"),
        properties=late(f"{__name__}.folder.read_folder_facts"),
        task=late(f"{__name__}.folder.folder_task"),
        memory=late(f"{__name__}.session.folder_bytes"),
    ),
    ModelFormat(
        "auto-model",
        "pocketserve.runtimes.hugging_face.task_session",
        file_starts=("config.json",),
        claims=late(f"{__name__}.task_folder.is_task_model"),
        by_name=True,
        has_config=True,
        missing=late(f"{__name__}.library.missing_library"),
        own_threads=True,
        last_choice=True,
        confines_itself=True,
        other_files=late(f"{__name__}.task_folder.files_beside"),
        properties=late(f"{__name__}.task_folder.read_task_facts"),
        memory=late(f"{__name__}.task_session.task_folder_bytes"),
    ),
)
