# One line a target. Everything happens in environments inside this folder; nothing else is installed.
PYTHON ?= python3
PARALLEL = -n auto --dist worksteal --durations=15
.PHONY: demo test test-core test-docs test-lab test-frameworks test-tflite-runtime test-all test-browser test-convert test-own-models test-triton test-ray test-families test-llm test-speech test-arm64 test-newest soak cases check serve bench evidence plots apk aar docs release
demo: ; $(PYTHON) tools/environment.py core && .venv/bin/pocketserve demo
test: ; $(PYTHON) tools/environment.py dev && .venv/bin/python tools/run_tests.py quick $(PARALLEL)
test-core: ; $(PYTHON) tools/environment.py dev && .venv/bin/python tools/run_tests.py core $(PARALLEL)
test-docs: ; $(PYTHON) tools/environment.py dev && .venv/bin/python tools/run_tests.py docs $(PARALLEL)
test-lab: ; $(PYTHON) tools/environment.py dev && .venv/bin/python tools/run_tests.py lab $(PARALLEL)
test-frameworks: ; $(PYTHON) tools/environment.py all && .venv-all/bin/python tools/run_tests.py all $(PARALLEL)
test-tflite-runtime: ; $(PYTHON) tools/environment.py tflite-runtime && .venv-tflite-runtime/bin/python tools/run_tests.py tflite-runtime $(PARALLEL)
test-all: test test-core test-frameworks test-tflite-runtime
test-browser: ; $(PYTHON) tools/environment.py dev && .venv/bin/python tools/run_tests.py browser -m browser tests/web tests/attacks/test_web_browser.py tests/attacks/test_browser_origins.py tests/javascript $(PARALLEL)
test-convert: ; $(PYTHON) tools/environment.py dev all && .venv/bin/python tools/run_tests.py convert lab/tests/convert lab/tests/compress && .venv-all/bin/python tools/run_tests.py convert-torch -m "convert and torch" lab/tests/convert
test-own-models: ; $(PYTHON) tools/environment.py all zoo && .venv-all/bin/python tools/run_tests.py own-models lab/tests/convert/test_own_models.py
test-triton: ; $(PYTHON) tools/environment.py triton && .venv-triton/bin/python tools/run_tests.py triton lab/tests/scaleout/test_triton.py
test-ray: ; $(PYTHON) tools/environment.py ray && .venv-ray/bin/python tools/run_tests.py ray -m ray lab/tests/scaleout
test-families: ; $(PYTHON) tools/environment.py families && .venv-families/bin/python tools/run_tests.py families -n 2 -m families tests/families
test-llm: ; $(PYTHON) tools/environment.py llm && .venv-llm/bin/python tools/run_tests.py llm -m llm tests/llm $(PARALLEL)
test-speech: ; $(PYTHON) tools/environment.py speech && .venv-speech/bin/python tools/run_tests.py speech -m speech tests/speech lab/tests/convert/test_convert_speech.py $(PARALLEL)
test-arm64: ; $(PYTHON) tools/environment.py dev && .venv/bin/python tools/arm64.py
test-newest: ; $(PYTHON) tools/environment.py dev && .venv/bin/python tools/newest_python.py -- $(PARALLEL)
soak: ; $(PYTHON) tools/environment.py all && .venv-all/bin/python tools/soak.py
cases: ; $(PYTHON) tools/environment.py all && .venv-all/bin/python tests/asset_cases.py
check: ; $(PYTHON) tools/environment.py dev && .venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/mypy && .venv/bin/python tools/code_measures.py
serve: ; $(PYTHON) tools/environment.py core && .venv/bin/pocketserve serve $(MODELS)
bench: ; $(PYTHON) tools/environment.py bench && .bench/own/bin/python -m benchmarks
evidence: ; $(PYTHON) tools/environment.py all && .venv-all/bin/python -m benchmarks.evidence $(STEPS)
plots: ; .bench/own/bin/python -m benchmarks.plot build/benchmarks.json docs/images && .bench/own/bin/python -m benchmarks.results build/benchmarks.json docs/generated/benchmark-results.md
apk: ; $(PYTHON) android_bridge/build_apk.py
aar: ; $(PYTHON) android_bridge/build.py aar --output build/bridge
docs: ; $(PYTHON) tools/environment.py release && .venv-release/bin/sphinx-build -q -W -E -a --keep-going -b html -c docs -d build/doctrees . build/site && echo build/site/index.html
release: ; $(PYTHON) tools/environment.py release && .venv-release/bin/python tools/release.py
