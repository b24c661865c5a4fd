"""What all may import: errors, YAML with lines, typed settings, atomic files, the home."""
