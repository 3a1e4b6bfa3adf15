"""Contents of the explorer, computed without a page.

``questions.py`` reads what is typed, ``searches.py`` follows a search and scores its outputs, ``search_errors.py``
looks for better outputs than a beam's, ``answers.py`` puts these together; ``chains.py`` advances chains of a masked
model sweep by sweep.
"""
