"""Tests of the statistics of a model version."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.engine.statistics import (
    MAX_BATCH_SIZES,
    UNANSWERED,
    Timing,
    VersionStatistics,
)
from pocketserve_wire import ErrorCode

NEVER = {"count": 0, "ns": 0}
PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


def document(statistics: VersionStatistics, memory_bytes: int = 0) -> dict:
    return statistics.to_json("m", "v", memory_bytes)


def test_a_version_that_never_ran():
    assert document(VersionStatistics()) == {
        "name": "m",
        "version": "v",
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": {
            **dict.fromkeys(("success", "fail", *UNANSWERED.values(), *PHASES), NEVER),
            "cache_hit": NEVER,
            "cache_miss": NEVER,
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def test_a_scripted_sequence_is_counted_exactly():
    statistics = VersionStatistics()
    statistics.record_success(Timing(1, 10, 100, 1000))
    statistics.record_success(Timing(2, 20, 200, 2000, rows=5))
    statistics.record_failure(7)
    statistics.record_success(
        Timing(
            3,
            30,
            300,
            3000,
            rows=5,
            executions=5,
        )
    )
    statistics.record_failure(8, ErrorCode.INFERENCE_FAILED)
    statistics.record_failure(1, ErrorCode.SUPERSEDED)
    statistics.record_failure(2, ErrorCode.DEADLINE_EXCEEDED)
    statistics.record_failure(3, ErrorCode.QUEUE_FULL)
    found = document(statistics, memory_bytes=42)

    assert found["last_inference"] > 0
    assert (found["inference_count"], found["execution_count"]) == (11, 7)
    assert found["inference_stats"] == {
        "success": {"count": 3, "ns": 6666},
        "fail": {"count": 5, "ns": 15 + 6},
        "superseded": {"count": 1, "ns": 1},
        "cancelled": NEVER,
        "expired": {"count": 1, "ns": 2},
        "refused": {"count": 1, "ns": 3},
        "queue": {"count": 3, "ns": 6},
        "compute_input": {"count": 3, "ns": 60},
        "compute_infer": {"count": 3, "ns": 600},
        "compute_output": {"count": 3, "ns": 6000},
        "cache_hit": NEVER,
        "cache_miss": NEVER,
    }
    assert found["batch_stats"] == [
        {
            "batch_size": 1,
            "compute_input": {"count": 1, "ns": 10},
            "compute_infer": {"count": 1, "ns": 100},
            "compute_output": {"count": 1, "ns": 1000},
        },
        {
            "batch_size": 5,
            "compute_input": {"count": 2, "ns": 50},
            "compute_infer": {"count": 2, "ns": 500},
            "compute_output": {"count": 2, "ns": 5000},
        },
    ]
    assert found["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 42}]


def test_the_number_of_itemised_batch_sizes_is_limited():
    statistics = VersionStatistics()
    for rows in range(1, 2 * MAX_BATCH_SIZES + 1):
        statistics.record_success(Timing(0, 1, 1, 1, rows=rows))
    statistics.record_success(Timing(0, 1, 1, 1, rows=1))
    found = document(statistics)
    assert [entry["batch_size"] for entry in found["batch_stats"]] == list(
        range(1, MAX_BATCH_SIZES + 1)
    )
    assert found["batch_stats"][0]["compute_infer"]["count"] == 2
    assert found["execution_count"] == 2 * MAX_BATCH_SIZES + 1
    assert found["inference_count"] == sum(range(1, 2 * MAX_BATCH_SIZES + 1)) + 1


COUNTS = st.integers(0, 10**9)
TIMINGS = st.builds(
    Timing,
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    st.integers(1, 40),
    st.integers(1, 40),
    st.none(),
)


@given(st.lists(TIMINGS | COUNTS, max_size=40))
def test_totals_are_sums_of_recorded_values(events):
    statistics = VersionStatistics()
    for event in events:
        statistics.record_success(event) if isinstance(
            event, Timing
        ) else statistics.record_failure(event)
    timings = [event for event in events if isinstance(event, Timing)]
    found = document(statistics)
    assert found["inference_count"] == sum(timing.rows for timing in timings)
    assert found["execution_count"] == sum(timing.executions for timing in timings)
    assert found["inference_stats"]["success"] == {
        "count": len(timings),
        "ns": sum(
            timing.queue_ns + timing.input_ns + timing.infer_ns + timing.output_ns
            for timing in timings
        ),
    }
    assert found["inference_stats"]["fail"]["count"] == len(events) - len(timings)
    assert sum(
        batch["compute_infer"]["count"] for batch in found["batch_stats"]
    ) == len(timings)
    assert sum(batch["compute_infer"]["ns"] for batch in found["batch_stats"]) == sum(
        t.infer_ns for t in timings
    )


@pytest.mark.parametrize("threads", [8])
def test_no_count_is_lost_between_threads(threads):
    statistics = VersionStatistics()
    start = threading.Barrier(threads)

    def record() -> None:
        start.wait(120)
        for _ in range(500):
            statistics.record_success(Timing(1, 1, 1, 1, rows=2))
            statistics.record_failure(1)

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(record) for _ in range(threads)]:
            future.result(120)
    found = document(statistics)
    assert found["inference_count"] == 2 * threads * 500
    assert found["inference_stats"]["success"] == {
        "count": threads * 500,
        "ns": 4 * threads * 500,
    }
    assert found["inference_stats"]["fail"] == {
        "count": threads * 500,
        "ns": threads * 500,
    }
