"""Load and run unseen model files in a throw-away process; what harms it is never loaded by the server."""

TRIAL_PREFIX = "trial-"  # what the names of trials' work folders begin with
