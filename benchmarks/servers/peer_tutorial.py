"""The typical tutorial: Flask's own server and JSON lists."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flask import Flask, jsonify, request
from werkzeug.serving import make_server

from benchmarks.reference import ramp_times

app = Flask("tutorial")


@app.post("/predict")
def predict() -> Any:
    """``{"data": [...]}`` in, ``{"prediction": [...]}`` out."""
    data = np.array(request.get_json()["data"], dtype=np.float32)
    return jsonify({"prediction": ramp_times(data).tolist()})


def main() -> None:
    """Serve as ``flask run`` does: a thread for each connection."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
