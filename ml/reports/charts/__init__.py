"""Inline SVG, one kind of chart a module: numbers in, markup out."""
