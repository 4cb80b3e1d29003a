"""The loader for kernels without BTF: BCC reads the layout of types from the kernel's headers."""
