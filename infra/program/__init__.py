"""The parts of an environment: Pulumi components, each with a typed Args dataclass."""
