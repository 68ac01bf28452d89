"""Limits on what a peer may send, each with the reason for its size.

These are the defaults; the server's settings table (``pocketserve.config``) can tighten or widen those that
depend on the device. The wire codec refuses whatever exceeds them before it allocates memory for it.
"""

MAX_BODY_BYTES = (
    64 * 1024 * 1024
)  # one request body, inflated; 64 MiB is also Triton's default for its JSON input
FIRST_BODY_BYTES = (
    1024 * 1024
)  # a longer body is given memory in steps: as much again as has come, within bounds
GROWTH_BYTES = 4 * FIRST_BODY_BYTES
_ZEROS = memoryview(
    bytes(FIRST_BODY_BYTES)
)  # a new block would lie behind the body, which then had to move to grow


def grow(memory: bytearray, end: int) -> None:
    """Give a body the memory of its next step, up to ``end`` bytes."""
    have = len(memory)
    missing = min(
        end - have, max(FIRST_BODY_BYTES, min(have, max(GROWTH_BYTES, have // 4)))
    )
    while missing:
        block = _ZEROS[:missing]
        memory += block  # extend() would copy the block first
        missing -= len(block)


MAX_JSON_DEPTH = 100  # nesting of JSON arrays and objects, as in Triton; deeper documents are attacks, not tensors
MAX_JSON_CONTAINERS = 2_000_000  # arrays and objects of one document; a nested picture of a megapixel has a million
MAX_JSON_SCALARS = MAX_BODY_BYTES // 8
"""Values of one document, commas in texts included: 8,388,608, a picture of 2.8 megapixels in colour. A number costs 32
bytes once parsed and two at least on the wire, so that a document stays below four times the largest body."""

MAX_JSON_STRINGS = 2_000_000
"""Texts and names of members of one document: each costs 60 to 200 bytes once parsed, and three or more on the wire. As
many as there may be cells in a table of named features."""

MAX_RANK = 32  # dimensions of one tensor; NumPy before 2.0 stops at 32
MAX_TENSORS = 256  # inputs, or requested outputs, of one inference request
MAX_NAME_CHARS = 256  # characters in the name of a parameter or a request id
MAX_TENSOR_NAME_CHARS = 4096  # of a tensor; TensorFlow's converters join the names of scopes: 300 are common
MAX_ELEMENTS = 2**31 - 1  # elements of one tensor: what an index in Java can address
MAX_HEADER_BYTES = 32 * 1024  # HTTP request line and headers together
TENSOR_ALIGNMENT = 8  # JSON headers are padded with spaces so that raw tensors start at a multiple of this, in bytes
