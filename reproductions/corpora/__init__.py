"""The corpora that the reproductions read: the catalogue, where they come from, and their readers."""
