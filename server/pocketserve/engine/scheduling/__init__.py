"""Scheduling: queues, batches, options, fairness and cancellation."""
