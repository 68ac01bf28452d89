"""The device: cores, battery, power, and other programs run within bounds."""
