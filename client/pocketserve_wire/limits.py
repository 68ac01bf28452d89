"""Limits on the messages of a peer, each with the reason for its size.

These are the defaults. The server's settings table (``pocketserve.config``) can change
those that depend on the device. The codec checks them before it allocates memory.
"""

MAX_BODY_BYTES = 64 * 1024 * 1024
"""One request body, inflated; 64 MiB is also Triton's default for its JSON input."""

FIRST_BODY_BYTES = 1024 * 1024
"""Memory for longer bodies is allocated in steps, about as much as was received."""

GROWTH_BYTES = 4 * FIRST_BODY_BYTES
# A new block would be placed behind the body, which would have to move to grow.
_ZEROS = memoryview(bytes(FIRST_BODY_BYTES))


def grow(memory: bytearray, end: int) -> None:
    """Extend a body's memory by its next step, to at most ``end`` bytes."""
    have = len(memory)
    step = min(have, max(GROWTH_BYTES, have // 4))
    step = max(FIRST_BODY_BYTES, step)
    missing = min(end - have, step)
    while missing:
        block = _ZEROS[:missing]
        memory += block  # extend() copies the block first
        missing -= len(block)


MAX_JSON_DEPTH = 100
"""Nesting of JSON arrays and objects, as in Triton. Tensors never need more."""

MAX_JSON_CONTAINERS = 2_000_000
"""Arrays and objects of one document; a nested megapixel image has a million."""

MAX_JSON_SCALARS = MAX_BODY_BYTES // 8
"""Values of one document, including commas in strings.

8,388,608 values are a colour image of 2.8 megapixels. A number takes 32 bytes when
parsed and at least two in JSON, so a parsed document stays below four times the largest
body.
"""

MAX_JSON_STRINGS = 2_000_000
"""Strings and member names of one document: the limit of cells in a table with named
features. Each takes 60 to 200 bytes when parsed, and at least three in JSON."""

MAX_RANK = 32  # dimensions of one tensor; the limit of NumPy before 2.0
MAX_TENSORS = 256  # inputs, or requested outputs, of one inference request
MAX_NAME_CHARS = 256  # characters in the name of a parameter or a request id
MAX_TENSOR_NAME_CHARS = 4096
"""TensorFlow's converters join scope names: 300 characters are common."""
MAX_ELEMENTS = 2**31 - 1  # elements of one tensor: the range of a Java index
MAX_HEADER_BYTES = 32 * 1024  # HTTP request line and headers together
TENSOR_ALIGNMENT = 8
"""JSON headers are padded with spaces to a multiple of this, in bytes."""
