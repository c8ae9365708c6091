"""Performance: memory prediction, benchmarks and search for settings, profiles of kernels."""
