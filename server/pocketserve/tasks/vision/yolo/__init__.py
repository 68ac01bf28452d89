"""Models of the YOLO family whose answers hold more than boxes."""
