say() { echo "cosmos_setup: $*" >&2; }
die() { say "$2"; exit "$1"; } # die STATUS MESSAGE
built=no
say "folders in '$home_of_runs'"
for name in data checkpoints logs containers; do
    mkdir -p -- "$home_of_runs/$name" || die 73 "'$home_of_runs/$name' cannot be made."
    if [ ! -e "$HOME/aam-$name" ]; then ln -s -- "$home_of_runs/$name" "$HOME/aam-$name"; fi
done
free=$(df --output=avail -B1G -- "$home_of_runs" | tail -n1)
[ "$free" -ge 45 ] || die 73 "Only $free GB are free at '$home_of_runs'; the image takes 43 GB while it is made."
command -v "$engine" >/dev/null || die 69 "No $engine on PATH; 'module avail $engine' lists what there is."
say "$("$engine" --version)"
if [ -e "$image" ]; then
    say "'$image' is there"
else
    export SINGULARITY_TMPDIR=$home_of_runs/containers/tmp SINGULARITY_CACHEDIR=$home_of_runs/containers/cache
    export APPTAINER_TMPDIR=$SINGULARITY_TMPDIR APPTAINER_CACHEDIR=$SINGULARITY_CACHEDIR
    mkdir -p -- "$SINGULARITY_TMPDIR" "$SINGULARITY_CACHEDIR"
    if [ -n "${AAM_IMAGE_URI-}" ]; then
        "$engine" pull "$image.part" "$AAM_IMAGE_URI" && built=yes
    else
        [ -e containers/rocm63.def ] || die 66 "Run this at the top of the checkout, or set AAM_IMAGE_URI."
        "$engine" build "$image.part" containers/rocm63.def && built=yes
    fi
    [ "$built" = yes ] || die 69 "The image was not made; where users may not build, set AAM_IMAGE_URI to pull it."
    mv -- "$image.part" "$image" || die 73 "The image could not be put at '$image'."
fi
if command -v aam-launch >/dev/null; then
    aam-launch images lock rocm63 --site cosmos
    aam-launch site check cosmos
else
    say "'pip install .' gives aam-launch, which records the image and checks the site"
fi
if [ ! -d "$home_of_runs/containers/pytest" ]; then
    python3 -m pip install --quiet --target "$home_of_runs/containers/pytest" pytest ||
        say "pytest was not installed; only test_runner.sh needs it"
fi
"$engine" exec --contain --cleanenv --no-home "$image" aam --version ||
    die 69 "The image does not start; 'aam-launch doctor' may say why."
say "ready; next: docs/cosmos_quickstart.md"
