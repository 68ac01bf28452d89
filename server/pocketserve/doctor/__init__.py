"""``pocketserve doctor``: what this device can do, what is wrong, and the command that fixes it."""
