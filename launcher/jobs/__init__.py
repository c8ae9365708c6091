"""Batch jobs: what a site is, what may be submitted there, and the script that Slurm gets."""
