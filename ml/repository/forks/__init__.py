"""A fork of the template: made, brought up to date, and the wheel that a thin one has."""
