"""Run parallel jobs: divide data into mini-batches, and process them in several processes."""
