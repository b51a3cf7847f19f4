"""Chapters of a public-domain novel, divided by single empty lines as in Project Gutenberg's files."""

from __future__ import annotations

CHAPTERS = """Chapter 1

It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a
wife.

However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth
is so well fixed in the minds of the surrounding families, that he is considered as the rightful property of some
one or other of their daughters.

Chapter 2

Mr. Bennet was among the earliest of those who waited on Mr. Bingley. He had always intended to visit him, though
to the last always assuring his wife that he should not go; and till the evening after the visit was paid, she had
no knowledge of it.

Chapter 3

Not all that Mrs. Bennet, however, with the assistance of her five daughters, could ask on the subject was
sufficient to draw from her husband any satisfactory description of Mr. Bingley.
"""
