"""The operators that a SavedModel may run: an allow-list, so that what is new or unknown is refused.

An operator is on it if all that it does is to compute from its inputs and attributes, or to change what the model
itself holds: its variables, tables, tensor arrays and random numbers. One is not on it if any input, attribute or state
of it leads elsewhere, whatever it is for:

* files: readers, writers, checkpoints, vocabularies by path (``FixedUnigramCandidateSampler``, ``Skipgram``),
  descriptors of messages (``DecodeProtoV2``), memory regions (``ImmutableConst`` maps any file), dumps, summaries;
* data sets, iterators and queues: most of them end in a file or in a function that the graph alone does not show;
* the network, other processes, devices, collectives, TPUs; Python;
* the process: ``Abort``, ``Sleep``, printing (it forges lines of the log), batching threads, barriers, mutexes;
* programs in another language: XLA's own operators, whose custom calls find any symbol of the process by name;
* calibration, statistics, and what exists for TensorFlow's tests; names that begin with ``_``, which only TensorFlow's
  optimizers write (``_EagerConst`` stands in saved functions).

A test holds it against the registry of the installed TensorFlow: no operator here has state, a function, or an argument
that is called like a path or an address, except those that the test names.
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
