"""The order of requests: queues, batches, options, fair shares and cancellation."""
