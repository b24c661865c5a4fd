"""Handle pull requests in workflows: the comment, trainings, promotions."""
