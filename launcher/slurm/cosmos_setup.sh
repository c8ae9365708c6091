log() { echo "cosmos_setup: $*" >&2; }
die() { log "$2"; exit "$1"; } # die STATUS MESSAGE
command -v aam-launch >/dev/null || die 69 "No aam-launch on PATH; 'pip install .' in the checkout installs it."
command -v "$engine" >/dev/null || die 69 "No $engine on PATH; 'module avail $engine' lists what there is."
log "$("$engine" --version), folders in '$home_of_runs'"
for name in data checkpoints logs containers containers/tmp containers/cache; do
    mkdir -p -- "$home_of_runs/$name" || die 73 "'$home_of_runs/$name' cannot be made."
done
for name in data checkpoints logs containers; do
    if [ ! -e "$HOME/aam-$name" ]; then ln -s -- "$home_of_runs/$name" "$HOME/aam-$name"; fi
done
# A home is too small for what a build unpacks and caches.
export SINGULARITY_TMPDIR=$home_of_runs/containers/tmp SINGULARITY_CACHEDIR=$home_of_runs/containers/cache
export APPTAINER_TMPDIR=$SINGULARITY_TMPDIR APPTAINER_CACHEDIR=$SINGULARITY_CACHEDIR
if [ -e "$image" ]; then
    aam-launch images add rocm63 "$image" --site cosmos || exit
else
    aam-launch images build rocm63 --site cosmos "$@" || exit
fi
python3 -m pip install --quiet --upgrade --target "$home_of_runs/containers/pytest" pytest ||
    log "pytest was not installed; only test_runner.sh needs it"
"$engine" exec --contain --cleanenv --no-home "$image" aam --version ||
    die 69 "The image does not start; 'aam-launch doctor' may say why."
log "ready; next: docs/cosmos_quickstart.md"
