"""Select the tests of each kind of run (``pytest --for KIND``).

The Makefile and the tools only name a kind. Without a kind everything runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MARKS: Final = {
    "live": "starts a real server process",
    "alone": "measures memory, threads or cores: no other test runs meanwhile",
    "thorough": "takes long, or ends processes, uses up a resource or waits for a timeout: ``make test-core``",
    "assets": "needs the folder of public test models beside the project (see tests/README.md)",
    "browser": "drives real browsers, which ``make test-browser`` fetches where none are installed",
    "onnx": "needs ONNX Runtime",
    "heic": "needs pillow-heif",
    "otel": "needs OpenTelemetry's SDK and OTLP exporter",
    "torch": "needs PyTorch and ExecuTorch",
    "tensorflow": "needs TensorFlow",
    "node": "needs Node 20: ``make test-core``",
    "tfjs": "needs Node and the npm packages of TensorFlow.js",
    "llm": "needs an engine for language models",
    "speech": "needs ffmpeg and a public speech model: ``make test-speech``",
    "compiler": "needs a C compiler (cc, gcc or clang)",
    "java": "needs a JDK 17, and Debian packages for the Android tools",
    "conformance": "runs other people's clients against a live server",
    "triton": "runs the real Triton, in an environment of its own",
    "ray": "runs a real Ray, in an environment of its own",
    "wheel": "builds the wheel and installs it into an empty environment",
    "simulated": "waits for a simulated phone, in real time",
    "convert": "needs the environments of converters (gigabytes)",
    "own_models": "converts models of our own in the environments of converters, for hours",
    "families": "compares with the model makers' own libraries, in an environment of its own",
    "soak": "sends thousands of requests and watches the memory",
    "long": "repeats for many minutes what other tests do once: ``make soak`` alone runs it",
}
HOW: Final = ("live", "alone", "thorough")
"""Marks for the way a test runs, not for its requirements."""

BIG: Final = frozenset(MARKS) - {*HOW, "assets", "node", "onnx"}
NOT_QUICK: Final = frozenset({"alone", "thorough", "assets", "node"})
"""Marks of tests that ``make test`` leaves to ``make test-core``."""

SANS_NUMPY: Final = (
    "wire",
    "child",
    "pairing/test_srp.py",
    "pairing/test_desk.py",
    "repository/test_manifest.py",
    "android",
    "codegen",
    "engine/test_policy_simulation.py",
    "engine/test_recorded_arrivals.py",
    "engine/test_cores.py",
    "engine/test_memory_policy.py",
    "engine/test_request_options.py",
    "simulate/test_timeline_text.py",
    "simulate/test_verdict.py",
    "simulate/test_scenario.py",
    "cli/test_output.py",
    "cli/test_token_qr.py",
    "cli/test_service.py",
    "test_protocol_document.py",
    "test_termux.py",
    "test_config.py",
    "test_arm64_tool.py",
    "test_suite.py",
    "test_benchmarks.py",
    "test_run_lock.py",
    "test_release.py",
    "test_packages.py",
)
"""Tests without runtimes and arrays, which give the same result in every environment.
"""

SANS_FRAMEWORKS: Final = (
    *SANS_NUMPY,
    "speech/test_decoding.py",
    "speech/test_gate.py",
    "speech/test_rules.py",
    "speech/test_speech_server.py",
    "speech/test_subtitles.py",
    "speech/test_vocabulary.py",
    "speech/test_whisper_models.py",
    "runtimes/test_engine_embeddings.py",
    "runtimes/test_gguf_header.py",
    "runtimes/test_hugging_face_folder.py",
    "runtimes/test_llm_client.py",
    "runtimes/test_llm_memory.py",
    "runtimes/test_llm_program.py",
    "runtimes/test_plain_yaml.py",
    "tasks/test_avif.py",
    "tasks/test_hugging_face_sounds.py",
    "tasks/test_model_inputs.py",
    "tasks/test_pictures.py",
    "test_automation.py",
    "test_distributions.py",
    "test_extending.py",
    "tasks/foreign",
    "tasks/test_advice.py",
    "tasks/test_encoded.py",
    "tasks/test_forms.py",
    "tasks/test_label_files.py",
    "tasks/test_hugging_face_texts.py",
    "tasks/test_library_pictures.py",
    "tasks/test_strips.py",
    "tasks/test_table_classes.py",
    "tasks/test_yolo.py",
    "cli/test_cli_commands.py",
    "cli/test_named_commands.py",
    "cli/test_narrow.py",
    "test_odd_pictures.py",
    "test_odd_inputs.py",
    "test_recipes.py",
    "tasks/test_frames.py",
    "tasks/test_geometry.py",
    "tasks/test_image_classification.py",
    "tasks/test_number_inputs.py",
    "tasks/test_object_detection.py",
    "tasks/test_parameters.py",
    "tasks/test_resampling.py",
    "tasks/test_sentencepiece.py",
    "tasks/test_sound_tasks.py",
    "tasks/test_spectrogram.py",
    "tasks/test_text_metadata.py",
    "tasks/test_text_tasks.py",
    "tasks/test_vision_live.py",
    "tasks/test_vision_tasks.py",
    "tasks/test_wav.py",
    "tasks/test_wordpiece.py",
    "socket",
    "client",
    "http",
    "transports",
    "engine",
    "repository",
    "simulate",
    "folder",
    "pairing",
    "scaleout",
    "attacks/test_hostile_servers.py",
    "attacks/test_port_hijackers.py",
    "attacks/test_http_strangers.py",
    "attacks/test_library_patterns.py",
    "attacks/test_pairing_flood.py",
    "attacks/test_web_page.py",
    "attacks/test_descriptions.py",
    "attacks/test_readers.py",
    "attacks/test_bounded_work.py",
    "attacks/test_terminal.py",
    "attacks/test_starved.py",
    "cli/test_predict_many.py",
    "cli/test_signals.py",
    "cli/test_status.py",
    "test_tuning.py",
    "cli/test_open.py",
    "cli/test_completion.py",
    "cli/test_progress.py",
    "compare/test_compare_devices.py",
    "compare/test_judge.py",
    "compare/test_recommend.py",
    "compare/test_report.py",
    "compare/test_samples.py",
    "compare/test_statistics.py",
    "convert/test_zoo.py",
    "test_app_tokens.py",
    "test_code_measures.py",
    "test_codegen.py",
    "test_docs.py",
    "test_evidence.py",
    "test_folder_lock.py",
    "test_layering.py",
    "test_security.py",
    "test_trust.py",
    "test_unloaded.py",
    "test_web_sessions.py",
    "test_wording.py",
    "javascript",
    "web/test_page_files.py",
    "web/test_page_modules.py",
    "web/test_vendor.py",
)
"""Tests of arrays, pictures, TFLite and ONNX that give the same result in every
environment.

They need nothing that only some environments have, such as pillow-heif in
``tasks/test_pictures.py``. NumPy has one version in all environments except the one of
the older ``tflite_runtime``.
"""

SANS_TFLITE: Final = (
    *SANS_NUMPY,
    "cli/test_cli_commands.py",
    "cli/test_named_commands.py",
    "cli/test_narrow.py",
    "http/test_allowed_origins.py",
    "http/test_http_data_plane.py",
    "tasks/foreign",
    "tasks/test_advice.py",
    "tasks/test_label_files.py",
    "tasks/test_sentencepiece.py",
    "tasks/test_wordpiece.py",
    "socket",
    "pairing",
    "repository",
    "simulate",
    "live",
    "folder",
    "client",
    "scaleout",
    "transports",
    "web",
    "http/test_http_framing.py",
    "http/test_http_limits.py",
    "http/test_http_connections.py",
    "http/test_chunked.py",
    "http/test_http_openapi.py",
    "http/test_http_request_vectors.py",
    "http/test_http_overload.py",
    "http/test_http_strangers.py",
    "http/test_waiting.py",
    "http/test_http_lifecycle.py",
    "http/test_http_repository.py",
    "http/test_http_changes.py",
    "http/test_http_bodies.py",
    "http/test_http_page.py",
    "engine/test_power.py",
    "engine/test_version_records.py",
    "attacks/test_bounded_work.py",
    "attacks/test_descriptions.py",
    "attacks/test_hostile_servers.py",
    "attacks/test_http_strangers.py",
    "attacks/test_library_patterns.py",
    "attacks/test_pairing_flood.py",
    "attacks/test_port_hijackers.py",
    "attacks/test_readers.py",
    "attacks/test_starved.py",
    "attacks/test_terminal.py",
    "attacks/test_web_page.py",
    "cli/test_completion.py",
    "cli/test_open.py",
    "cli/test_predict_many.py",
    "cli/test_progress.py",
    "cli/test_signals.py",
    "cli/test_status.py",
    "test_tuning.py",
    "compare",
    "convert/test_zoo.py",
    "test_app_tokens.py",
    "test_code_measures.py",
    "test_codegen.py",
    "test_docs.py",
    "test_evidence.py",
    "test_folder_lock.py",
    "test_layering.py",
    "test_recipes.py",
    "test_security.py",
    "test_trust.py",
    "test_unloaded.py",
    "test_web_sessions.py",
    "test_wording.py",
)
"""Tests of bytes, files and texts that an older interpreter or NumPy doesn't affect."""


LAB: Final = (
    "codegen",
    "compare",
    "compress",
    "convert",
    "scaleout",
    "simulate",
    "test_benchmarks.py",
    "test_codegen.py",
    "test_tuning.py",
    "test_evidence.py",
)
"""The laboratory: research, development and scale-out."""

DOCS: Final = (
    "test_docs.py",
    "test_wording.py",
    "test_recipes.py",
    "test_protocol_document.py",
    "test_packages.py",
    "test_code_measures.py",
    "test_suite.py",
)
"""Documents, their examples, and the files that must agree with them."""

THOROUGH: Final = (
    *LAB,
    "attacks",
    "doctor",
    "live",
    "quarantine",
    "cli/test_own_server.py",
    "cli/test_signals.py",
    "client/test_client_fallback.py",
    "engine/test_batching.py",
    "engine/test_cancelled_runs.py",
    "engine/test_engine.py",
    "engine/test_memory_policy.py",
    "engine/test_model_queue.py",
    "engine/test_policy_simulation.py",
    "engine/test_power.py",
    "engine/test_prepared_models.py",
    "engine/test_queue_entries.py",
    "engine/test_recorded_arrivals.py",
    "folder/test_init.py",
    "http/test_http_devices.py",
    "http/test_http_lifecycle.py",
    "http/test_http_overload.py",
    "http/test_http_strangers.py",
    "http/test_waiting.py",
    "pairing/test_pair_live.py",
    "socket/test_socket_endings.py",
    "socket/test_socket_faults.py",
    "socket/test_socket_giving_up.py",
    "socket/test_socket_memory.py",
    "socket/test_socket_overload.py",
    "socket/test_socket_queue.py",
    "socket/test_socket_watcher.py",
    "tasks/test_sentencepiece.py",
    "test_folder_lock.py",
    "test_run_lock.py",
    "test_suite.py",
)
"""Files and folders of tests that ``make test`` leaves to ``make test-core``."""


@dataclass(frozen=True)
class Kind:
    """One kind of run.

    Attributes:
        without: tests with any of these marks are left out.
        had: files and folders of tests whose result is already known from ``make test`` and
        ``make test-core``, except those marked as ``BIG``.
        only: files and folders of the tests that run; empty for all.
        quick: True for the tests of ``make test`` only, False for the rest of them, None
        for both.
        only_here: files and folders of tests that other runs leave out because this one has
        them.
        complete: a skipped test is a failure: a mark must leave out tests whose
        requirements are missing. A skip in ``only_here`` is always a failure.
    """

    without: frozenset[str]
    had: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    quick: bool | None = None
    only_here: tuple[str, ...] = ()
    complete: bool = False


KINDS: Final = {
    "dev": Kind(BIG, only_here=SANS_FRAMEWORKS),
    "quick": Kind(BIG, quick=True, only_here=SANS_FRAMEWORKS),
    "core": Kind(BIG, quick=False, only_here=SANS_FRAMEWORKS),
    "docs": Kind(BIG, only=DOCS, only_here=SANS_FRAMEWORKS),
    "lab": Kind(BIG, only=LAB, only_here=SANS_FRAMEWORKS),
    "all": Kind(
        frozenset(
            {
                *("browser", "convert", "families", "llm"),
                *("long", "own_models", "speech", "triton", "ray"),
            }
        ),
        had=SANS_FRAMEWORKS,
        complete=True,
    ),
    "browser": Kind(frozenset({"long"}), complete=True),
    "soak": Kind(
        frozenset(
            {
                *("browser", "convert", "families", "llm"),
                *("own_models", "speech", "triton", "ray"),
            }
        ),
        complete=True,
    ),
    "tflite-runtime": Kind(BIG | {"node", "onnx"}, had=SANS_TFLITE, complete=True),
    "convert": Kind(BIG - {"convert"}),
    "convert-torch": Kind(BIG - {"convert", "torch"}),
    "own-models": Kind(BIG - {"own_models"}, complete=True),
    "triton": Kind(BIG - {"triton"}, complete=True),
    "ray": Kind(BIG - {"ray"}, complete=True),
    "families": Kind(BIG - {"families"}, complete=True),
    "llm": Kind(BIG - {"llm"}, complete=True),
    "speech": Kind(BIG - {"speech"}, complete=True),
    # That Python starts through a script, so venv cannot make environments of it.
    "newest": Kind(BIG | {"assets", "node"}, had=("test_distributions.py",)),
    "arm64": Kind(BIG | {"assets", "live", "node"}),
}
