"""Goyal et al. (AAAI 2018), a continuous relaxation of beam search: Tables 4.1 and 4.2 of the thesis."""
