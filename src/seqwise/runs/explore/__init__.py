"""Contents of the explorer, computed without a user interface.

``questions.py`` reads typed text, ``searches.py`` records searches, scores outputs and finds search errors,
``suggestions.py`` ranks examples, ``answers.py`` combines these, and ``chains.py`` advances chains of a masked model.
"""
