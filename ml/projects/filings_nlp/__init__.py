"""The model filings-nlp: README.md says where a person goes on."""
