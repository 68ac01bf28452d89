"""Train the tree ensembles of ``own_models.py``: ``python own_trees.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from own_models import OWN_MODELS
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

ENSEMBLES: dict[str, Any] = {
    "forest": RandomForestRegressor(20, max_depth=6, random_state=0),
    "boosted": GradientBoostingRegressor(n_estimators=30, random_state=0),
}


def main(folder: Path) -> None:
    """Write each model's folder."""
    random = np.random.default_rng(0)
    features = random.normal(size=(400, 6)).astype(np.float32)
    targets = features[:, 0] * features[:, 1] + np.abs(features[:, 2])
    for name, ensemble in ENSEMBLES.items():
        home = folder / name
        OWN_MODELS[name].write_samples(home)
        ensemble.fit(features, targets)
        types = [("features", FloatTensorType([None, 6]))]
        program = to_onnx(ensemble, initial_types=types)
        (home / f"{name}.onnx").write_bytes(program.SerializeToString())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
