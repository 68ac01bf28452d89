"""The operators that a SavedModel may run: an allow-list, so that what is new or unknown is refused.

An operator is on it if all that it does is to compute from its inputs and attributes, or to change what the model
itself holds: its variables, tables, tensor arrays and random numbers. Left out is what leads elsewhere by any input,
attribute or state: files (also vocabularies by path, ``DecodeProtoV2``, ``ImmutableConst``, dumps and summaries); data
sets, iterators and queues; the network, other processes, devices and Python; the process (``Abort``, ``Sleep``,
printing, batching threads, barriers); XLA's operators, whose custom calls find any symbol of the process by name;
calibration and tests; and names that begin with ``_`` but ``_EagerConst``, which only TensorFlow's optimizers write.
A test holds the list against the registry of the installed TensorFlow.
"""

from __future__ import annotations

from pocketserve.runtimes.name_lists import read_names

OPERATORS = read_names(__package__, "savedmodel_operators.txt")
"""Operators by what they do: ``stateless``, ``control``, ``variables``, ``tables``, ``arrays`` and ``random``."""

ALLOWED = frozenset().union(*OPERATORS.values())
RESTORES = frozenset({"Restore", "RestoreSlice", "RestoreV2"})
"""Read checkpoints: allowed in the step that restores the model's own variables, from where the loader says."""

FROM_FILE = {"InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}
"""Operators that may read an asset, and which of their inputs is the path."""
