"""Generate the reference pages from the code when the site is built."""
