"""All knowledge of transformers' versions and private names, one file for each of its parts."""
