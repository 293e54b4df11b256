"""What the chaos run is made of: the job, its training script, the events, and the checks."""
