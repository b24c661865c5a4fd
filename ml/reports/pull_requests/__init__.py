"""The words of pull requests: comments, titles, bodies; and of issues about what they brought."""
