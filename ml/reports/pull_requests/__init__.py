"""Write the comments, titles and bodies of pull requests, and of the issues about them."""
