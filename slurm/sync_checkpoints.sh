#!/bin/bash
#SBATCH --job-name=sync_checkpoints
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# Copies a run folder to another, every file whole at any moment: FROM TO.
# Written by aam-launch 0.1.0, a part of its job scripts.
# shellcheck disable=SC2016,SC2034,SC2329
set -uo pipefail

: "${USER:=$(id -un)}" "${SLURM_JOB_ID:=$$}"
home_of_runs="/cosmos/vast/scratch/$USER"
image="${AAM_IMAGE:-/cosmos/vast/scratch/$USER/containers/rocm63.sif}"
engine=${AAM_ENGINE:-singularity}
local_disk="/scratch/$USER/job_$SLURM_JOB_ID"
stage_most_gb=900
sync_seconds=10
sync_patience=300
modules=(singularitypro rocm)
interfaces=('hsn*' 'hsi*')

# --- what is said goes to the job's log

say() { printf 'aam-job: %s\n' "$*" >&2; }

die() { # die STATUS WORDS...
    local status=$1
    shift
    say "$*"
    exit "$status"
}

# --- the run folder: worked on at the node's own disk, copied to where it belongs at every save

declare -A copied=()

# Files of a folder by their relative names; hidden ones are being written.
files_of() { find "$1" -mindepth 1 -name '.*' -prune -o -type f -printf '%P\0' 2>/dev/null; }

# sync_run FROM TO: makes TO the same as FROM. At any moment each file of TO is whole, and what is
# written before a checkpoint (metrics.csv) is there before it.
sync_run() {
    local from=$1 to=$2 name held=$1/.held failed=0
    local -a plain=() checkpoints=() there=()
    mkdir -p -- "$to" || return
    mapfile -d '' -t there < <(files_of "$from")
    [ ${#there[@]} -gt 0 ] || return 0
    for name in "${there[@]}"; do
        if [[ $name == *.ckpt ]]; then checkpoints+=("$name"); else plain+=("$name"); fi
    done
    rm -rf -- "$held"
    for name in "${checkpoints[@]}"; do
        mkdir -p -- "$held/$(dirname -- "$name")" && ln -- "$from/$name" "$held/$name" 2>/dev/null
    done
    for name in "${plain[@]}"; do copy_whole "$from/$name" "$to/$name" || failed=1; done
    for name in "${checkpoints[@]}"; do
        if [ -e "$held/$name" ]; then copy_whole "$held/$name" "$to/$name" || failed=1; fi
    done
    rm -rf -- "$held"
    [ "$failed" = 0 ] || return 73
    # What the program removed of the run as it was left: that of a run that is replaced.
    [ -e "$from/.restored" ] && [ -e "$from/run.json" ] || return 0
    while IFS= read -r -d '' name; do
        [ -e "$from/$name" ] || rm -f -- "$to/$name"
    done <"$from/.restored"
}

copy_whole() { # copy_whole FILE TARGET
    local aside now
    now=$(stat -c '%s %i %.Y' -- "$1" 2>/dev/null) || return 0 # gone meanwhile
    [ "${copied[$2]-}" != "$now" ] || return 0
    if [ ! -e "$2" ] || ! cmp -s -- "$1" "$2"; then
        aside=$(dirname -- "$2")/.$(basename -- "$2").$SLURM_JOB_ID.part
        if ! { mkdir -p -- "$(dirname -- "$2")" && cp -p -- "$1" "$aside" && sync -- "$aside" && mv -f -- "$aside" "$2"; }; then
            rm -f -- "$aside"
            return 1
        fi
    fi
    copied[$2]=$now
}

# restore_run FROM TO: the run as it was left, on the node's own disk.
restore_run() {
    local name
    [ -d "$1" ] || return 0
    rm -rf -- "$2" && mkdir -p -- "$2" || return 73
    while IFS= read -r -d '' name; do
        mkdir -p -- "$2/$(dirname -- "$name")" && cp -p -- "$1/$name" "$2/$name" || return 73
        printf '%s\0' "$name" >>"$2/.restored"
    done < <(files_of "$1")
}

keep_syncing() { # keep_syncing FROM TO
    local told=no
    while sleep "$sync_seconds"; do
        if sync_run "$1" "$2" 2>"$here/sync.err"; then
            told=no
        elif [ "$told" = no ]; then
            say "The run could not be copied to '$2': $(tail -n1 "$here/sync.err"). Tried again every $sync_seconds s."
            told=yes
        fi
    done
}

# The last copy; a full disk is given time, so that a person can free some.
sync_last() { # sync_last FROM TO
    local waited=0
    until sync_run "$1" "$2" 2>"$here/sync.err"; do
        if [ "$waited" -ge "$sync_patience" ]; then
            say "The run could not be copied to '$2': $(tail -n1 "$here/sync.err"). What was copied before is whole; the rest is at '$1' on $(hostname)."
            return 73
        fi
        [ "$waited" -gt 0 ] || say "The run cannot be copied to '$2': $(tail -n1 "$here/sync.err"). Waiting $sync_patience s for room."
        sleep 5 && waited=$((waited + 5))
    done
}

here=$(mktemp -d) && sync_last "$1" "$2"
status=$?
rm -r -- "$here"
exit $status
