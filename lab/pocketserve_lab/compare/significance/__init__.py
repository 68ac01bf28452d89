"""Tests of significance: quantiles, power and verdicts."""
