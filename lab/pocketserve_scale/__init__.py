"""The same models folder on engines of others: more processes on one machine, other servers."""
