"""What the server keeps between its runs, in small files of the state folder."""
