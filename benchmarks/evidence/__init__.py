"""Whether converting pays: models made, measured on several machines and held against claims, as docs/evidence.md."""
