"""Roll a folder out on Ray Serve: all of it in replicas, and each model with state in a single one at its own path."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from ray import serve

from pocketserve.config import Config
from pocketserve.server import StartError
from pocketserve_scale.ray_replica import RayReplica

_NAME = "pocketserve"  # of the application at /, and the beginning of the others' names
_ONGOING = 2  # requests of a replica from which another one is wanted
_START_TIMEOUT_S = (
    900.0  # for models to be tried and loaded, and replicas to be replaced
)
_STUCK_S = 300.0  # for which a replica's threads may all be busy
_POLL_S = 0.2
_REASON = re.compile(r"pocketserve\.[\w.]*Error: (.+)")
_LOST = re.compile(
    r"\b(ActorDiedError|ActorUnavailableError|WorkerCrashedError|NodeDiedError|RayActorError)\b"
)
_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")


class ReplicaLostError(StartError):
    """The process of a replica ended while it started, which says nothing against the models."""


class Replicas(NamedTuple):
    """Bounds of the number of replicas, and the processors that each takes from Ray."""

    least: int
    most: int
    cpus: int


def deploy_folder(config: Config, replicas: Replicas) -> list[str]:
    """Run the folder, in place of what runs; return the models with state.

    New replicas come before old ones go. Where a new one cannot start the old ones go on, and nothing else is changed.

    Raises:
        StartError: why a replica cannot start.
    """
    slots, share = (
        config.state_dir.absolute(),
        {"ray_actor_options": {"num_cpus": replicas.cpus}},
    )
    handle = _run(
        _NAME,
        "/",
        dataclasses.replace(config, sequences=False),
        slots,
        _several(replicas) | share,
    )
    names: list[str] = handle.stateful_models.remote().result(timeout_s=_STUCK_S)
    for name in names:
        own = dataclasses.replace(config, load=(name,))
        # No surge: of two replicas each would miss steps. The old one has left when the new one is asked.
        _run(
            f"{_NAME}-{name}",
            f"/v2/models/{name}",
            own,
            slots / "sequences" / name,
            {"num_replicas": 1, **share},
        )
    current = {_NAME, *(f"{_NAME}-{name}" for name in names)}
    for application in serve.status().applications.keys() - current:
        if application.startswith(f"{_NAME}-"):
            serve.delete(application)
    return names


def _several(replicas: Replicas) -> dict[str, Any]:
    surge = {"max_surge_percent": 20}  # rounded up
    if replicas.least == replicas.most:
        return {"num_replicas": replicas.least, **surge}
    bounds = {"min_replicas": replicas.least, "max_replicas": replicas.most}
    return {
        "autoscaling_config": {
            **bounds,
            "target_ongoing_requests": _ONGOING,
            "upscale_delay_s": 1.0,
        },
        **surge,
    }


def _run(
    name: str, path: str, config: Config, slots: Path, options: dict[str, Any]
) -> Any:
    deployment = serve.deployment(
        RayReplica,
        name="replica",
        max_ongoing_requests=config.worker_threads,
        max_queued_requests=config.queue_limit,
        graceful_shutdown_timeout_s=math.ceil(config.drain_timeout) + 1,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=1,
        health_check_timeout_s=_STUCK_S,
        max_constructor_retry_count=1,
        **options,
    )
    target = serve.RunTarget(
        target=deployment.bind(config, slots), name=name, route_prefix=path
    )
    try:
        return _run_once(target, name)
    except ReplicaLostError:
        return _run_once(target, name)


def _run_once(target: serve.RunTarget, name: str) -> Any:
    handle = serve.run_many([target], wait_for_applications_running=False)[0]
    _wait(name)
    return handle


def _wait(name: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        application = serve.status().applications[name]
        if application.status == "RUNNING":
            return
        if application.status in _FAILED:
            raise _fault(application)
        if time.monotonic() > deadline:
            text = (
                f"replicas were not ready within {_START_TIMEOUT_S:g} "
                f"s; does the cluster have processors for one more?"
            )
            raise StartError(text)
        time.sleep(_POLL_S)


def _fault(application: Any) -> StartError:
    """Return our own error with its sentence out of Ray's traceback; else Ray's words."""
    texts = [
        application.message,
        *(deployment.message for deployment in application.deployments.values()),
    ]
    text = "\n".join(texts).strip()
    sentences = _REASON.findall(text)
    if sentences:
        return StartError(str(sentences[-1]))
    is_lost = _LOST.search(text) is not None
    kind = ReplicaLostError if is_lost else StartError
    return kind(f"Ray says: {' '.join(text.split())[-500:]}")
