"""Draw charts as inline SVG."""
