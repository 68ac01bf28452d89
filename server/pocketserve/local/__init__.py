"""Models without a server to ask: in this process, or by a server process of one's own."""
