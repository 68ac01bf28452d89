"""Compare the versions of one model on this device: size, memory, speed, answers; and say which one to serve.

``session`` runs the versions, each in a process of its own (``worker``); ``samples`` reads the data, ``scores`` and
``statistics`` judge the answers, ``recommend`` decides; ``report``, ``page`` and ``figure`` show it; ``devices`` puts
results of two devices side by side; ``layers`` looks for the first layer that differs.
"""
