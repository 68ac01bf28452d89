"""Make a model smaller by training it on: recipes, each a function over a PyTorch module, samples and labels.

``run.py`` runs one as a converter is run, and measures the accuracy before and after on samples that it was not given.
"""
