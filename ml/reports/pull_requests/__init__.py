"""Write pull-request comments, and the titles and bodies of pull requests and issues."""
