"""Performance: profiles of GPU kernels."""
