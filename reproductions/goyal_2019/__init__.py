"""Goyal et al. (NAACL 2019), local and global normalisation: Tables 5.1 to 5.6 of the thesis."""
