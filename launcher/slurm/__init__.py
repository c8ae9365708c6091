"""Batch jobs: sites, preflight checks, the job script, and the client of Slurm."""
