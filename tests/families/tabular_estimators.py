"""Train scikit-learn, LightGBM and XGBoost on tiny data, and export to ONNX.

Nothing here imports a library before a function is called: the rows of
:data:`ESTIMATORS` are read without them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

ROWS = 90
FEATURES = 4
TEST_ROWS = 5
CLASSES = {
    "integers": (10, 20, 30),
    "from one": (1, 2, 3),
    "texts": ("blue", "green", "red"),
}
OPSETS = {"": 17, "ai.onnx.ml": 3}


@dataclass(frozen=True)
class Estimator:
    """One estimator.

    Attributes:
        name: its class, as the documentation calls it.
        module: the module of the class.
        arguments: of its constructor.
        scores: the method whose values the ONNX file gives; empty if they are of another
        scale.
        classes: the number of classes in the data.
        zipmap: whether its converter has the option.
    """

    name: str
    module: str
    arguments: dict[str, Any]
    scores: str = "predict_proba"
    classes: int = 3
    zipmap: bool = True

    @property
    def title(self) -> str:
        """Return the name with its distinguishing options."""
        arguments = []
        for key, value in self.arguments.items():
            if key != "estimators":
                arguments.append(f"{key}={getattr(value, '__name__', value)}")
        return f"{self.name}({', '.join(arguments)})[{self.classes}]"

    def create(self) -> Any:
        """Return an untrained estimator."""
        import importlib

        kind = getattr(importlib.import_module(self.module), self.name)
        arguments = {
            key: value() if callable(value) else value
            for key, value in self.arguments.items()
        }
        return kind(**arguments)


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


def _linear_svc() -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(random_state=0)


def _pair() -> list[tuple[str, Any]]:
    from sklearn.naive_bayes import GaussianNB

    return [("logistic", _logistic()), ("bayes", GaussianNB())]


_LINEAR = "sklearn.linear_model"
_SVM = "sklearn.svm"
_ENSEMBLE = "sklearn.ensemble"
_FEW = {"n_estimators": 3, "random_state": 0}
_CLASSIFIERS = (
    Estimator("LogisticRegression", _LINEAR, {}),
    Estimator("RidgeClassifier", _LINEAR, {}, "decision_function", zipmap=False),
    Estimator("SGDClassifier", _LINEAR, {"random_state": 0}, "decision_function"),
    Estimator("SGDClassifier", _LINEAR, {"loss": "log_loss", "random_state": 0}),
    Estimator("Perceptron", _LINEAR, {"random_state": 0}, "decision_function"),
    Estimator(
        "LinearSVC", _SVM, {"random_state": 0}, "decision_function", zipmap=False
    ),
    Estimator("SVC", _SVM, {}, "decision_function"),
    Estimator("SVC", _SVM, {"probability": True, "random_state": 0}),
    Estimator("NuSVC", _SVM, {"nu": 0.2}, "decision_function"),
    Estimator("RandomForestClassifier", _ENSEMBLE, _FEW),
    Estimator("ExtraTreesClassifier", _ENSEMBLE, _FEW),
    Estimator("GradientBoostingClassifier", _ENSEMBLE, _FEW),
    Estimator("HistGradientBoostingClassifier", _ENSEMBLE, {"max_iter": 3}),
    Estimator("AdaBoostClassifier", _ENSEMBLE, _FEW),
    Estimator("BaggingClassifier", _ENSEMBLE, _FEW),
    Estimator(
        "VotingClassifier",
        _ENSEMBLE,
        {"estimators": _pair, "voting": "soft", "flatten_transform": False},
    ),
    Estimator("StackingClassifier", _ENSEMBLE, {"estimators": _pair}),
    Estimator("KNeighborsClassifier", "sklearn.neighbors", {}),
    Estimator("GaussianNB", "sklearn.naive_bayes", {}),
    Estimator("MultinomialNB", "sklearn.naive_bayes", {}),
    Estimator("BernoulliNB", "sklearn.naive_bayes", {"binarize": 1.0}),
    Estimator("DecisionTreeClassifier", "sklearn.tree", {"random_state": 0}),
    Estimator(
        "MLPClassifier", "sklearn.neural_network", {"max_iter": 30, "random_state": 0}
    ),
    Estimator(
        "LinearDiscriminantAnalysis",
        "sklearn.discriminant_analysis",
        {"solver": "lsqr"},
    ),
    Estimator("QuadraticDiscriminantAnalysis", "sklearn.discriminant_analysis", {}),
    Estimator(
        "CalibratedClassifierCV",
        "sklearn.calibration",
        {"estimator": _linear_svc, "cv": 2},
    ),
    Estimator("OneVsRestClassifier", "sklearn.multiclass", {"estimator": _logistic}),
    Estimator("LGBMClassifier", "lightgbm", {"n_estimators": 3, "verbose": -1}),
    Estimator("XGBClassifier", "xgboost", {"n_estimators": 3}, zipmap=False),
)
_OTHER_SCALES = ("LinearDiscriminantAnalysis",)
"""For two classes sklearn-onnx 1.20 writes softmax of two opposite decisions, which is
sigmoid of twice the decision.
"""


def _of_two_classes(estimator: Estimator) -> Estimator:
    scores = "" if estimator.name in _OTHER_SCALES else estimator.scores
    return dataclasses.replace(estimator, classes=2, scores=scores)


CLASSIFIERS = (*_CLASSIFIERS, *map(_of_two_classes, _CLASSIFIERS))

OUTLIER_DETECTORS = (
    Estimator("IsolationForest", _ENSEMBLE, _FEW, "decision_function"),
    Estimator("OneClassSVM", _SVM, {}, "decision_function"),
    Estimator(
        "LocalOutlierFactor",
        "sklearn.neighbors",
        {"novelty": True},
        "decision_function",
    ),
)
REGRESSORS = (
    Estimator("LinearRegression", _LINEAR, {}),
    Estimator("Ridge", _LINEAR, {}),
    Estimator("SVR", _SVM, {}),
    Estimator("RandomForestRegressor", _ENSEMBLE, _FEW),
    Estimator("GradientBoostingRegressor", _ENSEMBLE, _FEW),
    Estimator("HistGradientBoostingRegressor", _ENSEMBLE, {"max_iter": 3}),
    Estimator("KNeighborsRegressor", "sklearn.neighbors", {}),
    Estimator("DecisionTreeRegressor", "sklearn.tree", {"random_state": 0}),
    Estimator(
        "MLPRegressor", "sklearn.neural_network", {"max_iter": 30, "random_state": 0}
    ),
    Estimator("LGBMRegressor", "lightgbm", {"n_estimators": 3, "verbose": -1}),
    Estimator("XGBRegressor", "xgboost", {"n_estimators": 3}),
)
MULTI_TARGET_REGRESSORS = tuple(
    estimator
    for estimator in REGRESSORS
    if estimator.name
    in (
        "LinearRegression",
        "Ridge",
        "RandomForestRegressor",
        "KNeighborsRegressor",
        "DecisionTreeRegressor",
    )
)


def table(classes: int = 3) -> tuple[Any, Any]:
    """Return rows of positive numbers [rows, features], and each row's class number."""
    generator = np.random.default_rng(0)
    numbers = np.arange(ROWS) % classes
    centres = generator.uniform(1, 5, (classes, FEATURES))
    rows = np.abs(centres[numbers] + generator.normal(0, 0.8, (ROWS, FEATURES)))
    return rows.astype(np.float32), numbers


def to_onnx_bytes(model: Any, zipmap: bool | str | None = None) -> bytes:
    """Return a trained estimator's ONNX file; ``zipmap`` None keeps the default."""
    module = type(model).__module__.partition(".")[0]
    if module in ("lightgbm", "xgboost"):
        return _boosted_to_onnx(model, module, zipmap)
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    options = None if zipmap is None else {id(model): {"zipmap": zipmap}}
    types = [("X", FloatTensorType([None, FEATURES]))]
    content: bytes = to_onnx(
        model, initial_types=types, options=options, target_opset=OPSETS
    ).SerializeToString()
    return content


def _boosted_to_onnx(model: Any, module: str, zipmap: bool | str | None) -> bytes:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    convert: Callable[..., Any] = getattr(onnxmltools, f"convert_{module}")
    options = {} if zipmap is None else {"zipmap": zipmap}
    types = [("X", FloatTensorType([None, FEATURES]))]
    content: bytes = convert(model, initial_types=types, **options).SerializeToString()
    return content


def named_columns() -> tuple[bytes, Any, list[list[Any]]]:
    """Return a classifier with named columns, one of them texts, and test rows."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rows, numbers = table()
    cells = np.empty((ROWS, 3), dtype=object)
    cells[:, 0], cells[:, 2] = rows[:, 0].tolist(), rows[:, 1].tolist()
    cells[:, 1] = np.array(["rome", "oslo", "bonn"])[np.arange(ROWS) % 2 + numbers % 2]
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), [0, 2]), ("texts", OneHotEncoder(), [1])]
    )
    model = make_pipeline(columns, _logistic()).fit(
        cells, np.array(CLASSES["texts"])[numbers]
    )
    number = FloatTensorType([None, 1])
    text = StringTensorType([None, 1])
    types = [
        ("age", number),
        ("city", text),
        ("pay", number),
    ]
    options = {id(model): {"zipmap": False}}
    content = to_onnx(
        model, initial_types=types, options=options, target_opset=OPSETS
    ).SerializeToString()
    return content, model, cells[:TEST_ROWS].tolist()


def texts() -> tuple[bytes, Any, list[str]]:
    """Return a classifier of words, and test texts."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    known = ["good film", "bad film", "great good", "awful bad"] * 5
    model = make_pipeline(TfidfVectorizer(), _logistic()).fit(
        known, ["liked", "disliked"] * 10
    )
    types = [("text", StringTensorType([None, 1]))]
    options = {id(model): {"zipmap": False}, TfidfVectorizer: {"locale": "C"}}
    content = to_onnx(
        model, initial_types=types, options=options, target_opset=OPSETS
    ).SerializeToString()
    return content, model, ["good film", "awful", "good bad"]
