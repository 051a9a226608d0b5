"""Throw dice: an experiment that trains nothing, to show that one folder is all that an experiment is.

attnres throw
attnres throw --dice 3
"""
