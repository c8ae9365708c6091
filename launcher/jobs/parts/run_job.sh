# --- the job: prepare each node, start a rank for each GPU, stop before the limit, go on afterwards

main() {
    : "${USER:=$(id -un)}"
    read_options "$@"
    choose_folder
    notes=${run_folder:-$here}/.aam-job-$SLURM_JOB_ID # what this job knows of itself
    case ${AAM_ROLE:-job} in
        prepare) prepare_node ;;
        rank) run_rank ;;
        tests) run_tests ;;
        clean) rm -rf -- "$here" ;;
        job) run_job "$@" ;;
    esac
}

# Signals reach this shell only (--signal=B:...). It asks rank 0, which runs on this node; the ranks
# agree among themselves. Slurm's own way would signal every process of a rank: squashfuse, which
# holds the image, would end, and the program with a bus error.
step='' asked='' interrupted=no left=no plugin_path='' instead=()
stop() {
    asked=${asked:-$1} interrupted=yes
    if [ -n "$step" ]; then ask_program & fi
}

# A program that does not hear signals yet would end by this one.
ask_program() {
    while [ ! -e "$here/hears" ] && kill -0 "$step" 2>/dev/null; do sleep 0.2; done
    [ ! -e "$here/hears" ] || kill -s USR1 "$(cat "$here/rank.pid")" 2>/dev/null
}

# Waits for a process and returns its status, whatever signals come meanwhile.
wait_for() {
    local status=127 found
    while :; do
        interrupted=no
        wait "$1"
        found=$?
        [ "$found" = 127 ] || status=$found
        [ "$interrupted" = yes ] || return "$status"
    done
}

# Every node gets this script as a text, so it needs no file there.
on_each_node() { # on_each_node ROLE WORDS...
    AAM_ROLE=$1 srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \
        bash -c "$script" aam-job "${@:2}"
}

prepare_node() {
    load_modules
    make_folders
    check_image
    stage "$here/staged" "${AAM_SUMS-}" "${inputs[@]}" || exit
    [ "$local_run" = no ] || restore_run "$run_folder" "$here/run" || exit
}

run_job() {
    local status=0 before syncing='' cpus
    script=$(<"$0")
    export SLURM_EXPORT_ENV=ALL AAM_SUMS=''
    cpus=$((SLURM_CPUS_ON_NODE / ranks_per_node))
    export SRUN_CPUS_PER_TASK=$((cpus > 0 ? cpus : 1))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SRUN_CPUS_PER_TASK}
    trap 'stop USR1' USR1 # save and go on later
    trap 'stop USR2' USR2 # save and end
    trap 'stop TERM' TERM
    say "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)), $(date -u +%FT%TZ)"
    go_on "$@"
    set -- "${options[@]}"
    load_modules
    make_folders
    if [ "$stage_most_gb" -gt 0 ]; then AAM_SUMS=$(sum_inputs "${inputs[@]}") || finish 66; fi
    on_each_node prepare "$@" &
    wait_for $! || finish $?
    if [ -n "$asked" ]; then
        say "The time was up before the program could start; give the job more." && asked=''
        finish 75
    fi
    set_ranks
    before=$(saved)
    if [ "$local_run" = yes ]; then keep_syncing "$here/run" "$run_folder" & syncing=$!; fi
    AAM_ROLE=rank srun --kill-on-bad-exit=1 --wait=0 bash -c "$script" aam-job "$@" &
    step=$!
    if [ -n "$asked" ]; then ask_program & fi
    wait_for "$step"
    status=$?
    step=''
    status=$(first_status "$status")
    if [ -n "$syncing" ]; then
        kill "$syncing" 2>/dev/null
        wait "$syncing" 2>/dev/null
        trap '' TERM # the last copy is not to be cut short
        sync_last "$here/run" "$run_folder" || { status=73 && left=yes; }
    fi
    if [ "$status" = 75 ] && [ "$asked" = USR1 ] && [ "$(saved)" = "$before" ]; then
        say "Nothing was saved since the job started, so it would not get further; not queued again."
        asked=''
    fi
    finish "$status"
}

# A job that starts again goes on with its run: no --overwrite, and the last whole checkpoint.
go_on() {
    local word skip=no
    options=()
    if [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || [ "$resumable" = no ] || [ ! "$run_folder/run.json" -nt "$notes.began" ]; then
        options=("$@")
        [ -z "$run_folder" ] || { mkdir -p -- "$run_folder" && touch -d "@$(date +%s)" -- "$notes.began"; }
        return 0
    fi
    for word in "$@"; do
        case $word in
            --overwrite | --resume-from=*) ;;
            --resume-from) skip=yes ;;
            *) if [ "$skip" = yes ]; then skip=no; else options+=("$word"); fi ;;
        esac
    done
    options+=(--resume-from auto)
    read_options "${options[@]}"
}

# Where the ranks meet: the first node, by the address that Slurm itself uses.
set_ranks() {
    local address
    address=$(scontrol show node "$SLURMD_NODENAME" --oneliner | grep -o 'NodeAddr=[^ ]*')
    export MASTER_ADDR=${address#NodeAddr=} MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
    rm -f -- "$notes.status"
}

saved() { stat -c '%s %i %.Y' -- "$run_folder/checkpoints/last.ckpt" 2>/dev/null; }

# The status of the rank that failed first; those that were stopped because of it do not count.
first_status() {
    local found=''
    [ ! -e "$notes.status" ] || read -r found _ <"$notes.status"
    echo "${found:-$1}"
}

run_rank() {
    local cpus='' status told=no pid
    local -a bound=() started=()
    load_modules
    set_network
    drop_variables
    if [ "$whole_nodes" = yes ] && [ "$ranks_per_node" -gt 1 ]; then cpus=$(cpus_near_gpu "$SLURM_LOCALID"); fi
    [ -z "$cpus" ] || bound=(taskset -c "$cpus")
    if [ "$SLURM_PROCID" = 0 ]; then
        rm -f -- "$here/hears"
        variables+=("AAM_HEARS=$here/hears")
    fi
    program
    trap 'interrupted=yes told=yes; kill -s TERM "$pid" 2>/dev/null' TERM
    "${bound[@]}" "${started[@]}" &
    pid=$!
    [ "$SLURM_PROCID" != 0 ] || echo "$pid" >"$here/rank.pid"
    wait_for "$pid"
    status=$?
    if [ "$status" -ne 0 ] && [ "$told" = no ]; then
        (set -o noclobber && echo "$status rank $SLURM_PROCID" >"$notes.status") 2>/dev/null
    fi
    # A rank that has stopped on request leaves the others time to do so.
    if [ "$status" = 75 ]; then exit 0; fi
    exit "$status"
}

finish() { # finish STATUS
    local status=$1
    if [ "$status" = 75 ] && [ "$asked" = USR1 ] && [ "$requeue" = yes ]; then
        on_each_node clean "${options[@]}"
        say "stopped before the time limit; queued again"
        # What the job knows of itself stays for the next start, which Slurm prepares by ending this one.
        if scontrol requeue "$SLURM_JOB_ID"; then sleep 60 && exit "$status"; fi
        say "Slurm did not queue it again."
    elif [ "$left" = no ]; then
        on_each_node clean "${options[@]}"
    fi
    rm -f -- "$notes".*
    say "ended with status $status, $(date -u +%FT%TZ)"
    exit "$status"
}
