#!/bin/bash
#SBATCH --job-name=sync_checkpoints
#SBATCH --partition=cluster
#SBATCH --time=0:30:00
#SBATCH --output=%x-%j.out
# Copy a run folder to another, every file complete at any moment: FROM TO.
exec python3 -m launcher.slurm.sync "$@"
