"""Azure ML v2 YAML files, loaded, checked and resolved into frozen plans."""
