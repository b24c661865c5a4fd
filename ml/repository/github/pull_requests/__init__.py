"""What workflows do about pull requests: the comment, a training, promotions."""
