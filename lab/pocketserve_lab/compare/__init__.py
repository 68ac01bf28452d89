"""Compare the versions of a model and recommend one.

``session`` runs the versions, each in its own process (``worker``). ``samples`` reads
the data, ``scores`` and ``statistics`` judge the answers, ``recommend`` decides.
``report``, ``page`` and ``figure`` present the result; ``devices`` compares results of
two devices; ``layers`` finds the first layer that differs.
"""
