"""YOLO models whose answers have more than boxes."""
