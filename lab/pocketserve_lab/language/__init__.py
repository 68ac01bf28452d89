"""Measure language models: their speed, cost, agreement and perplexity."""
