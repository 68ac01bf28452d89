"""``pocketserve doctor``: find problems of this device."""
