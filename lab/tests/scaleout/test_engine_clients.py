"""Repeat the tests of other people's clients with gunicorn and Ray Serve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance import test_curl, test_kserve, test_tritonclient
from conformance.conftest import digit
from conformance.test_tritonclient import client, http, scores
from conftest import Server
from gunicorn_server import gunicorn
from places import MODELS
from ray_server import ray_server

pytestmark = pytest.mark.live
__all__ = ["client", "digit", "http", "scores"]  # fixtures of these tests

test_kserve_health = test_kserve.test_v2_health
test_kserve_tensors = test_kserve.test_v2_infer
test_kserve_plain_dict = test_kserve.test_v2_plain_dict
test_kserve_empty_input = test_kserve.test_v2_empty_input
test_kserve_errors = test_kserve.test_v2_errors
test_kserve_of_version_1 = test_kserve.test_v1
test_tritonclient_health = test_tritonclient.test_health
test_tritonclient_metadata = test_tritonclient.test_model_metadata
test_tritonclient_tensors = test_tritonclient.test_binary_and_json
test_tritonclient_batches = test_tritonclient.test_batches
test_tritonclient_compression = test_tritonclient.test_compression
test_tritonclient_classification = test_tritonclient.test_classification
test_tritonclient_versions = test_tritonclient.test_versions
test_tritonclient_many_concurrent_requests = (
    test_tritonclient.test_many_concurrent_requests
)
test_tritonclient_token = test_tritonclient.test_token_as_a_header
test_curl_pictures = test_curl.test_picture_with_upload
test_curl_chunks = test_curl.test_picture_in_chunks
test_curl_protocols = test_curl.test_protocols
test_curl_compression = test_curl.test_compressed_body_and_answer
test_curl_large_body = test_curl.test_large_body_waits_for_the_continue
test_curl_token = test_curl.test_token
test_curl_errors = test_curl.test_errors


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("gunicorn", marks=pytest.mark.conformance),
        pytest.param("Ray", marks=[pytest.mark.ray, pytest.mark.alone]),
    ],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Serve the embedded models in two processes."""
    folder = tmp_path_factory.mktemp("engine")
    engine = (
        gunicorn(folder, MODELS)
        if request.param == "gunicorn"
        else ray_server(folder, MODELS, "--replicas", "2")
    )
    with engine as running:
        yield running
