"""Code of models runs only after its owner's consent, which is kept outside of the models folder."""
