"""Goyal et al. (AAAI 2018), a continuous relaxation of beam search: the thesis' Tables 4.1 and 4.2, and 3.1 and 3.2."""
