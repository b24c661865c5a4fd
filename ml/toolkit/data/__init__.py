"""What reads and splits the data of a training job."""
