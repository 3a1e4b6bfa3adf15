"""Contents of the explorer, computed without a page.

``questions.py`` reads typed text, ``searches.py`` records searches, scores outputs and finds search errors,
compares beams of several sizes, ``answers.py`` combines these; ``chains.py`` advances chains of a masked model.
"""
