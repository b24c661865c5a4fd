"""Watching what serves: whether requests and answers still are what the model was measured on."""
