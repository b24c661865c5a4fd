"""The model fraud-scoring: README.md says where a person goes on."""
