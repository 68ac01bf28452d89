"""Compare table answers with the estimators' own methods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families import tabular_estimators
from families.tabular_estimators import (
    CLASSES,
    CLASSIFIERS,
    MULTI_TARGET_REGRESSORS,
    OUTLIER_DETECTORS,
    REGRESSORS,
    TEST_ROWS,
    Estimator,
    table,
    to_onnx_bytes,
)
from pocketserve.api import predictions
from pocketserve.api.messages import ApiRequest
from pocketserve.terminal.local import open_local

pytestmark = [pytest.mark.families, pytest.mark.filterwarnings("ignore")]

TOLERANCE = 1e-4
CLASSIFICATION = "tabular-classification"
REGRESSION = "tabular-regression"


@dataclass(frozen=True)
class Family:
    """A row of the table of families in ``docs/generated/families.md``."""

    name: str
    library: str
    task: str
    formats: tuple[str, ...] = ("ONNX",)
    note: str = ""


def _families() -> Iterator[Family]:
    libraries = {
        "sklearn": "scikit-learn",
        "lightgbm": "LightGBM",
        "xgboost": "XGBoost",
    }
    for task, estimators in (
        (CLASSIFICATION, (*CLASSIFIERS, *OUTLIER_DETECTORS)),
        (REGRESSION, REGRESSORS),
    ):
        by_name = {estimator.name: estimator for estimator in estimators}
        for name, estimator in by_name.items():
            yield Family(name, libraries[estimator.module.partition(".")[0]], task)


FAMILIES = [*_families()]


def ask(folder: Path, content: bytes, body: Any, task: str) -> list[dict[str, Any]]:
    """Return the server's answer to rows."""
    home = folder / "m"
    home.mkdir()
    (home / "m.onnx").write_bytes(content)
    (home / "model.toml").write_text(f'task = "{task}"\n')
    service, name, _ = open_local(str(home / "m.onnx"), None)
    try:
        request = ApiRequest(
            path={"model": name}, query={}, body=memoryview(json.dumps(body).encode())
        )
        answer: list[dict[str, Any]] = predictions.document(
            predictions.ask(service, request)
        )["predictions"]
        return answer
    finally:
        service.close()


def winners(answer: Sequence[dict[str, Any]], rows: int = TEST_ROWS) -> list[str]:
    """Return the first label of each row."""
    return [
        next(entry["label"] for entry in answer if entry["row"] == row)
        for row in range(rows)
    ]


def check_scores(
    answer: Sequence[dict[str, Any]], expected: Any, classes: Sequence[Any]
) -> None:
    """Compare all classes' scores; binary decision values are the second class's.

    A single column of decision values is answered unchanged.
    """
    per_row = len(answer) / len(expected)
    for entry in answer:
        values = expected[entry["row"]]
        if np.ndim(values) == 0:
            is_second = entry["label"] == str(classes[1])
            value = values if is_second or per_row == 1 else -values
        else:
            value = values[[str(name) for name in classes].index(entry["label"])]
        assert entry["score"] == pytest.approx(value, abs=TOLERANCE)
    if np.ndim(expected) == 2:
        assert len(answer) == expected.size


def cases() -> Iterator[Any]:
    """Return classifiers with three classes in each form, and with two text classes."""
    for estimator in CLASSIFIERS:
        kinds = tuple(CLASSES) if estimator.classes > 2 else ("texts",)
        if estimator.name == "XGBClassifier":
            kinds = kinds[:1]
        for kind in kinds:
            for zipmap in (None, False, "columns") if estimator.zipmap else (None,):
                is_rare = zipmap == "columns" and (
                    kind == "from one" or estimator.module == "lightgbm"
                )
                if not is_rare:
                    yield pytest.param(
                        estimator, kind, zipmap, id=f"{estimator.title}-{kind}-{zipmap}"
                    )


@pytest.mark.parametrize(("estimator", "kind", "zipmap"), [*cases()])
def test_classifiers(
    tmp_path: Path, estimator: Estimator, kind: str, zipmap: bool | str | None
) -> None:
    rows, numbers = table(estimator.classes)
    classes = (
        numbers
        if estimator.name == "XGBClassifier"
        else np.array(CLASSES[kind])[numbers]
    )
    model = estimator.create().fit(rows, classes)
    asked = rows[:TEST_ROWS]

    answer = ask(tmp_path, to_onnx_bytes(model, zipmap), asked.tolist(), CLASSIFICATION)

    assert winners(answer) == [str(name) for name in model.predict(asked)]
    if estimator.scores:
        check_scores(answer, getattr(model, estimator.scores)(asked), model.classes_)


@pytest.mark.parametrize(
    "estimator", OUTLIER_DETECTORS, ids=lambda estimator: estimator.name
)
def test_outlier_detectors(tmp_path: Path, estimator: Estimator) -> None:
    rows, _ = table()
    model = estimator.create().fit(rows)
    asked = np.concatenate(
        [np.full((1, rows.shape[1]), 99, np.float32), rows[: TEST_ROWS - 1]]
    )

    answer = ask(tmp_path, to_onnx_bytes(model), asked.tolist(), CLASSIFICATION)

    assert winners(answer) == [str(name) for name in model.predict(asked)]
    assert answer[0]["label"] == "-1"
    assert [entry["score"] for entry in answer] == pytest.approx(
        model.decision_function(asked).tolist(), abs=1e-3
    )


REGRESSIONS = [
    *((estimator, 1) for estimator in REGRESSORS),
    *((estimator, 3) for estimator in MULTI_TARGET_REGRESSORS),
]


@pytest.mark.parametrize(
    ("estimator", "targets"),
    REGRESSIONS,
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_regressors(tmp_path: Path, estimator: Estimator, targets: int) -> None:
    rows, _ = table()
    model = estimator.create().fit(
        rows, rows[:, 0] if targets == 1 else rows[:, :targets]
    )
    asked = rows[:TEST_ROWS]

    answer = ask(tmp_path, to_onnx_bytes(model), asked.tolist(), REGRESSION)

    values = np.reshape([entry["value"] for entry in answer], (TEST_ROWS, targets))
    assert values == pytest.approx(
        model.predict(asked).reshape(TEST_ROWS, targets), abs=TOLERANCE
    )
    assert [entry["row"] for entry in answer] == [
        row for row in range(TEST_ROWS) for _ in range(targets)
    ]


@pytest.mark.parametrize("kind", ["integers", "texts"])
def test_several_targets(tmp_path: Path, kind: str) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier

    rows, numbers = table()
    first = np.array(CLASSES[kind])
    targets = np.stack([first[numbers], first[::-1][np.minimum(numbers, 1)]], axis=1)
    model = MultiOutputClassifier(LogisticRegression()).fit(rows, targets)
    asked = rows[:TEST_ROWS]

    answer = ask(tmp_path, to_onnx_bytes(model), asked.tolist(), CLASSIFICATION)

    for number, scores in enumerate(model.predict_proba(asked)):
        entries = [entry for entry in answer if entry["name"] == f"label[{number}]"]
        assert winners(entries) == [
            str(name) for name in model.predict(asked)[:, number]
        ]
        check_scores(entries, scores, model.estimators_[number].classes_)


def test_clusters(tmp_path: Path) -> None:
    from sklearn.cluster import KMeans

    rows, _ = table()
    model = KMeans(3, random_state=0).fit(rows)
    asked = rows[:TEST_ROWS]

    answer = ask(tmp_path, to_onnx_bytes(model), asked.tolist(), CLASSIFICATION)

    assert winners(answer) == [str(number) for number in model.predict(asked)]
    check_scores(answer, model.transform(asked), range(3))


def test_a_pipeline_of_named_columns(tmp_path: Path) -> None:
    content, model, asked = tabular_estimators.named_columns()

    answer = ask(
        tmp_path,
        content,
        [dict(zip(("age", "city", "pay"), row, strict=True)) for row in asked],
        CLASSIFICATION,
    )

    cells = np.array(asked, dtype=object)
    assert winners(answer, len(asked)) == model.predict(cells).tolist()
    check_scores(answer, model.predict_proba(cells), model.classes_)


def test_a_pipeline_of_texts(tmp_path: Path) -> None:
    content, model, asked = tabular_estimators.texts()

    answer = ask(tmp_path, content, [[text] for text in asked], CLASSIFICATION)

    assert winners(answer, len(asked)) == model.predict(asked).tolist()
    check_scores(answer, model.predict_proba(asked), model.classes_)
