"""Make a model smaller by training: recipes over a PyTorch module and labelled samples.

``run.py`` runs a recipe as a converter, and measures the accuracy before and after on
samples that it was not given.
"""
