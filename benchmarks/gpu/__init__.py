"""What decoding does on a GPU: one check in parts, that takes six minutes. It looks inside the package on purpose."""
