"""Encode and decode messages, for both transports and the client.

Standard library only, no sockets.
"""

from .datatypes import DATATYPES, Datatype
from .errors import ApiError, ErrorCode
from .tensor import Tensor
from .version import __version__

__all__ = ["DATATYPES", "ApiError", "Datatype", "ErrorCode", "Tensor", "__version__"]
