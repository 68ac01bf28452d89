"""Files that a server and its clients on the same device share."""
