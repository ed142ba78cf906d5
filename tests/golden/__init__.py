"""The shapes that cross the rooms or leave the house, as text in the repository: a change of one must be deliberate.

`python -m tests.golden.refresh` writes them anew; the diff of the files then belongs to the change and to its description.
"""
