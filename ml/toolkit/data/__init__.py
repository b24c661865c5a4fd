"""Read, check and split the data of a training job."""
