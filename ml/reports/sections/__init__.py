"""The parts of the page, one a module: facts in, markup out; nothing where there is nothing."""
