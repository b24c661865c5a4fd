"""Detect empty places ("gaps") in images of shelves by Mask R-CNN."""
