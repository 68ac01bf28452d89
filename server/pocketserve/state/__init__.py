"""Keep between runs, in small files of the state folder, what the server must not forget."""
