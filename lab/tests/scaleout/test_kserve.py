"""Check ``deploy/kserve.yaml`` against KServe's fields and our options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
import yaml

from conftest import Server, StartServer
from places import MODELS, ROOT
from pocketserve.cli import command_parser
from pocketserve.config import SETTINGS, load_config

TEXT = (ROOT / "deploy" / "kserve.yaml").read_text(encoding="utf-8")
RUNTIME, INFERENCE = yaml.safe_load_all(TEXT)
CONTAINER = RUNTIME["spec"]["containers"][0]


def record(required: str = "", **fields: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


# Fields and types that we use of KServe's resource definitions (serving.kserve.io,
# v1alpha1 and v1beta1).
WORD = {"type": "string"}
NUMBER = {"type": "integer"}
FLAG = {"type": "boolean"}
QUANTITY = {"type": ["string", "integer"]}
SECURITY = record(
    runAsNonRoot=FLAG,
    runAsUser=NUMBER,
    allowPrivilegeEscalation=FLAG,
    capabilities=record(drop=array(WORD)),
)
MOUNTS = array(record("name mountPath", name=WORD, mountPath=WORD, readOnly=FLAG))
PROBE = record(
    httpGet=record(
        "port",
        path=WORD,
        port=QUANTITY,
        httpHeaders=array(record("name value", name=WORD, value=WORD)),
    ),
    periodSeconds=NUMBER,
    failureThreshold=NUMBER,
)
ENVIRONMENT = record(
    "name", name=WORD, valueFrom=record(fieldRef=record("fieldPath", fieldPath=WORD))
)
PLACE = {
    "name": WORD,
    "image": WORD,
    "command": array(WORD),
    "securityContext": SECURITY,
    "volumeMounts": MOUNTS,
}
SERVER = record(
    "name",
    **PLACE,
    args=array(WORD),
    env=array(ENVIRONMENT),
    ports=array(record("containerPort", containerPort=NUMBER, protocol=WORD)),
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    resources=record(
        **dict.fromkeys(("requests", "limits"), record(cpu=QUANTITY, memory=QUANTITY))
    ),
)
VOLUME = record(
    "name",
    name=WORD,
    emptyDir=record(medium=WORD, sizeLimit=QUANTITY),
    secret=record(secretName=WORD),
)
MODEL_FORMAT = record(
    "name",
    name=WORD,
    version=WORD,
    autoSelect=FLAG,
    priority=NUMBER,
)


def resource(version: str, kind: str, spec: Any) -> dict[str, Any]:
    head = {
        "apiVersion": {"const": f"serving.kserve.io/{version}"},
        "kind": {"const": kind},
    }
    return record(
        "apiVersion kind metadata spec",
        **head,
        metadata=record("name", name=WORD),
        spec=spec,
    )


RUNTIME_SCHEMA = resource(
    "v1alpha1",
    "ServingRuntime",
    record(
        "containers",
        supportedModelFormats=array(MODEL_FORMAT),
        protocolVersions=array(WORD),
        containers=array(SERVER),
        volumes=array(VOLUME),
    ),
)
INFERENCE_SCHEMA = resource(
    "v1beta1",
    "InferenceService",
    record(
        "predictor",
        predictor=record(
            minReplicas=NUMBER,
            maxReplicas=NUMBER,
            model=record(
                modelFormat=record("name", name=WORD, version=WORD),
                runtime=WORD,
                protocolVersion=WORD,
                storageUri=WORD,
            ),
            initContainers=array(record("name", **PLACE)),
            volumes=array(VOLUME),
        ),
    ),
)


def arguments(address: str = "10.1.2.3") -> list[str]:
    """Return the server's arguments as the cluster fills them in."""
    filled = {
        "$(POD_IP)": address,
        "{{.Name}}": "models",
        "{{.Namespace}}": "default",
    }
    words = []
    for word in CONTAINER["args"]:
        for name, value in filled.items():
            word = word.replace(name, value)
        words.append(word)
    return words


def test_its_fields_are_those_of_kserve() -> None:
    """Required fields are there, and references match."""
    jsonschema.validate(RUNTIME, RUNTIME_SCHEMA)
    jsonschema.validate(INFERENCE, INFERENCE_SCHEMA)
    predictor = INFERENCE["spec"]["predictor"]
    assert predictor["model"]["runtime"] == RUNTIME["metadata"]["name"]
    assert CONTAINER["name"] == "kserve-container", (
        "KServe merges what it adds into the container of this name"
    )
    volumes = set()
    for volume in RUNTIME["spec"]["volumes"] + predictor["volumes"]:
        volumes.add(volume["name"])
    mounted = {
        mount["name"]
        for place in (CONTAINER, *predictor["initContainers"])
        for mount in place["volumeMounts"]
    }
    assert mounted == volumes
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {**RUNTIME, "spec": {**RUNTIME["spec"], "initContainers": []}},
            RUNTIME_SCHEMA,
        )


def test_its_options_are_those_of_serve() -> None:
    """Values are valid, and the drain fits Kubernetes's grace period."""
    options = command_parser(["serve"]).parse_args(arguments())
    config = load_config({name: getattr(options, name) for name in SETTINGS})
    assert config.host == "0.0.0.0"
    assert config.http_port == CONTAINER["ports"][0]["containerPort"]
    assert config.socket is False
    assert config.models_dir == Path("/mnt/models")
    assert config.auth
    assert not config.sequences
    assert config.drain_timeout < 30, "terminationGracePeriodSeconds"
    assert config.allowed_hosts[0] == "10.1.2.3"
    assert "models-predictor.default.svc.cluster.local" in config.allowed_hosts
    assert not re.search(r"[${} ]", "".join(config.allowed_hosts))


def copy_secret(secret: Path, token: Path) -> None:
    """Run the manifest's command that copies the secret, and check the copy's mode."""
    [copy] = INFERENCE["spec"]["predictor"]["initContainers"]
    command = []
    for word in copy["command"]:
        word = word.replace("/secret", str(secret))
        command.append(word.replace("/token/", f"{token}/"))
    subprocess.run(command, check=True, timeout=60)
    assert (token / "token").stat().st_mode & 0o077 == 0


def server_options(state: Path, token: Path) -> list[str]:
    """Return the server's options for a free port on loopback."""
    options = []
    for word in arguments()[2:]:
        if word.startswith(("--http-port", "--host")):
            continue
        word = word.replace("/state/", f"{state}/")
        options.append(word.replace("/token/", f"{token}/"))
    return options


def check_probe(server: Server, probe: dict[str, Any]) -> None:
    """Check that a probe of the cluster succeeds."""
    request = probe["httpGet"]
    headers = {header["name"]: header["value"] for header in request["httpHeaders"]}
    answer = requests.get(server.url + request["path"], headers=headers, timeout=60)
    assert answer.ok


@pytest.mark.live
def test_a_server_accepts_these_arguments(
    new_server: StartServer, tmp_path: Path
) -> None:
    """Probes need no token, gateways are allowed by name, and the secret is copied."""
    secret = tmp_path / "secret"
    token = tmp_path / "token"
    state = tmp_path / "state"
    for folder in (secret, token, state):
        folder.mkdir()
    state.chmod(0o777)  # an emptyDir is world-writable
    (secret / "token").write_text("k" * 43)
    (secret / "token").chmod(0o440)
    copy_secret(secret, token)

    server = new_server(MODELS, *server_options(state, token))
    server.token = "k" * 43
    check_probe(server, CONTAINER["readinessProbe"])
    check_probe(server, CONTAINER["livenessProbe"])
    statuses = {
        "10.1.2.3:8080": 200,
        "models-predictor.default": 200,
        "10.9.9.9": 403,
    }
    for host, status in statuses.items():
        assert server.call("GET", "/v2", headers={"Host": host}).status_code == status

    command = [sys.executable, "-m", "pocketserve", "serve", str(MODELS)]
    refused = subprocess.run(
        [*command, "--token-file", str(secret / "token")],
        env={**os.environ, "POCKETSERVE_STATE_DIR": str(tmp_path / "other")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert "can be read by others" in refused.stderr
    assert [path.name for path in state.iterdir()] == ["pocketserve"]
