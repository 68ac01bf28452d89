"""The device: cores, battery, power, and child programs."""
