"""Deploy a folder on Ray Serve.

All models run in several replicas; each stateful model also has a single replica of its
own, at its own path.
"""

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

_NAME = "pocketserve"
"""Name of the application at /, and prefix of the others' names."""

_ONGOING = 2
"""Requests of a replica that make Ray start another one."""

_START_TIMEOUT_S = 900.0
"""Time to try and load models, and to replace replicas."""

_STUCK_S = 300.0
"""Time for which all threads of a replica may be busy."""

_POLL_S = 0.2
_REASON = re.compile(r"pocketserve\.[\w.]*Error: (.+)")
_LOST = re.compile(
    r"\b(ActorDiedError|ActorUnavailableError|WorkerCrashedError"
    r"|NodeDiedError|RayActorError)\b"
)
_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")


class ReplicaLostError(StartError):
    """The process of a replica ended during its start.

    The models are not at fault.
    """


class Replicas(NamedTuple):
    """The bounds of the number of replicas, and the CPUs that each reserves."""

    least: int
    most: int
    cpus: int


def deploy_folder(config: Config, replicas: Replicas) -> list[str]:
    """Deploy the folder, replacing running replicas; return the stateful models.

    New replicas start before old ones stop. If a new one cannot start, the old ones go
    on, and nothing else is changed.

    Raises:
        StartError: a replica cannot start.
    """
    slots = config.state_dir.absolute()
    share = {"ray_actor_options": {"num_cpus": replicas.cpus}}
    common = dataclasses.replace(config, sequences=False)
    handle = _run(_NAME, "/", common, slots, _several(replicas) | share)
    names: list[str] = handle.stateful_models.remote().result(timeout_s=_STUCK_S)
    current = {_NAME}
    for name in names:
        # No surge: two replicas would share the steps of a sequence. The old one stops
        # before the new one takes requests.
        single = {"num_replicas": 1, **share}
        own = dataclasses.replace(config, load=(name,))
        own_slots = slots / "sequences" / name
        application = f"{_NAME}-{name}"
        _run(application, f"/v2/models/{name}", own, own_slots, single)
        current.add(application)
    for application in serve.status().applications.keys() - current:
        if application.startswith(f"{_NAME}-"):
            serve.delete(application)
    return names


def _several(replicas: Replicas) -> dict[str, Any]:
    # A surge is rounded up.
    options: dict[str, Any] = {"max_surge_percent": 20}
    if replicas.least == replicas.most:
        options["num_replicas"] = replicas.least
    else:
        options["autoscaling_config"] = {
            "min_replicas": replicas.least,
            "max_replicas": replicas.most,
            "target_ongoing_requests": _ONGOING,
            "upscale_delay_s": 1.0,
        }
    return options


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
            raise StartError(
                f"replicas were not ready within {_START_TIMEOUT_S:g} s; "
                "does the cluster have processors for one more?"
            )
        time.sleep(_POLL_S)


def _fault(application: Any) -> StartError:
    """Return our own error from Ray's traceback, else Ray's message."""
    texts = [application.message]
    for deployment in application.deployments.values():
        texts.append(deployment.message)
    text = "\n".join(texts).strip()
    sentences = _REASON.findall(text)
    if sentences:
        return StartError(str(sentences[-1]))
    message = f"Ray says: {' '.join(text.split())[-500:]}"
    if _LOST.search(text) is not None:
        return ReplicaLostError(message)
    return StartError(message)
