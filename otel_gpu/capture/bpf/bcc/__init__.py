"""The second loader: BCC reads the kernel's headers where the kernel has no BTF."""
