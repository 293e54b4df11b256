"""What `benchmarks.overhead` is made of: cases, jobs, their workers, and the table."""
