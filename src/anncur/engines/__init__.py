"""Who does the units of a long job: this process, or the workers of a Ray cluster."""
