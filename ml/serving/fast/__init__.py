"""A server for small models, in a custom container beside Azure ML's own inference server."""
