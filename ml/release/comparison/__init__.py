"""A candidate compared with a champion."""
