"""The parts of an environment: one ComponentResource a file, each with a typed Args dataclass."""
