"""The frozen plan of a job, and how it is built from a spec."""
