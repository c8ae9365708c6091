#!/bin/bash
#SBATCH --job-name=job_setup
#SBATCH --partition=cluster
#SBATCH --time=0:30:00
#SBATCH --output=%x-%j.out
# Show what a job finds on a node, and how that differs from the site: GPUs, CPUs, interfaces, disk.
exec aam-launch doctor --site "${AAM_LAUNCH_SITE:-cosmos}"
