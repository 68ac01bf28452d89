"""Limits on what a peer may send, each with the reason for its size.

These are the defaults; the server's settings table (``pocketserve.config``) can tighten or widen those that
depend on the device. The wire codec refuses whatever exceeds them before it allocates memory for it.
"""

MAX_BODY_BYTES = 64 * 1024 * 1024
"""One request body, inflated. 64 MiB is also Triton's default for its JSON input."""

MAX_JSON_DEPTH = 100
"""Nesting of JSON arrays and objects, as in Triton. Deeper documents are attacks, not tensors."""

MAX_JSON_CONTAINERS = 2_000_000
"""Arrays and objects of one document, brackets in texts included: a nested picture of a megapixel has one million."""

MAX_RANK = 32
"""Dimensions of one tensor. NumPy before 2.0 stops at 32."""

MAX_TENSORS = 256
"""Inputs, or requested outputs, of one inference request."""

MAX_NAME_CHARS = 256
"""Characters in the name of a tensor, a parameter or a request id."""

MAX_ELEMENTS = 2**31 - 1
"""Elements of one tensor: what an index in Java can address."""

MAX_HEADER_BYTES = 32 * 1024
"""HTTP request line and headers together."""

TENSOR_ALIGNMENT = 8
"""JSON headers are padded with spaces so that raw tensors start at a multiple of this, in bytes."""
