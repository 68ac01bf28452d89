"""For tests of programs that ask a server."""

from pocketserve.testing.running import RunningServer, running_server

__all__ = ["RunningServer", "running_server"]
