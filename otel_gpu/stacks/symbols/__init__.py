"""Names of native functions and of kernels."""
