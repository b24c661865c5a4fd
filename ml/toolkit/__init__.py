"""The library of training code, independent of the backend that runs it."""
