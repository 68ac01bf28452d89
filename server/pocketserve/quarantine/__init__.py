"""Try new model files in a throw-away process."""

TRIAL_PREFIX = "trial-"  # prefix of the trials' work folders
