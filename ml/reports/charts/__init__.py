"""Inline SVG charts: data in, markup out."""
