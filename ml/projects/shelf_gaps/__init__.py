"""Empty places on images of shelves, by Mask R-CNN."""
