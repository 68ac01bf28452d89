"""Access to the server: its token, those of single apps, pairing, and the checks that keep web pages out."""
