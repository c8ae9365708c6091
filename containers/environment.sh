# Environment variables of every image; Dockerfiles set the same with ENV, which a test compares.
# The libraries of the image come first, even where a site binds the host's ROCm (--rocm).
export PATH="/opt/aam/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export LD_LIBRARY_PATH="/opt/aam/torch-lib"
export LANG="C.UTF-8"
export LC_ALL="C.UTF-8"
export PYTHONNOUSERSITE="1"
export PYTHONDONTWRITEBYTECODE="1"
export PYTHONPATH=""
