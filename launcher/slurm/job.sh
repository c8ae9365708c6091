fail() { echo "aam-job: $2" >&2; exit "$1"; }
for path in "${required[@]}"; do [ -e "$path" ] || fail 66 "'$path' does not exist on $(hostname); put it where all nodes see it"; done
rm -rf -- "$node" && mkdir -m 700 -- "$node" || fail 73 "no folder can be made at '$node'"
# On each node, for each task: the job's folder, the variables that enter the image, the image.
enter='umask 077; passed=$1; shift; mkdir -- "$node" 2>/dev/null
[ -d "$node" ] && [ ! -L "$node" ] && [ -O "$node" ] && cd "$node" && mkdir -p home tmp staged run ||
    { echo "aam-job: $node on $(hostname) is no folder of this job; remove it" >&2; exit 73; }
vars=(); for name in $(compgen -e); do
    if [[ $name == $passed ]]; then vars+=("$name=${!name}"); fi
    if [[ $name == @(APPTAINER*|SINGULARITY*|*_proxy|*_PROXY) ]]; then unset "$name"; fi
done; exec "${@:2:$1}" "${vars[@]}" "${@:$1 + 2}"'
step() { # step NAME TASKS WORDS...: a step of aam.node in the image, as TASKS tasks on each node
    local cpus=$((SLURM_CPUS_ON_NODE / $2)) paths=("${mounts[@]}") engine=() kill=1
    case $1 in run) mapfile -t paths <"$node/mounts" ;; finish) kill=0 ;; esac # nodes end one by one
    [ -z "$image" ] || engine=("${container[@]}" "${paths[@]}" "$image")
    srun --nodes="$SLURM_NNODES" --ntasks-per-node="$2" --ntasks=$((SLURM_NNODES * $2)) \
        --cpus-per-task=$((cpus > 0 ? cpus : 1)) --kill-on-bad-exit=$kill --wait=0 \
        bash -c "$enter" "$1" "$passed" $((${#engine[@]} + 1)) "${engine[@]}" /usr/bin/env "${variables[@]}" \
        "$python" -m aam.node "$1" "${settings[@]}" "${mounts[@]}" --status "$status" -- "${@:3}"
}
status=0 cancelled=''
trap 'echo requeue >"$node/stop"' USR1 # scancel --signal=USR1 --batch JOB: save, continue later
trap 'echo end >"$node/stop"' USR2     # scancel --signal=USR2 --batch JOB: save, end
trap 'cancelled=yes' TERM
{ step prepare 1 "$@" && step run "$ranks" "$@"; } &
until wait $!; status=$?; ! kill -0 $! 2>/dev/null; do :; done
[ -z "$cancelled" ] || { rm -rf -- "$node"; fail 143 "cancelled; the last copied checkpoint is complete"; }
step finish 1 "$@"; status=$?
[ -e "$node/keep" ] || srun --ntasks-per-node=1 --ntasks="$SLURM_NNODES" rm -rf -- "$node"
if [ "$status" = 99 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; status=75; fi
exit "$status"
