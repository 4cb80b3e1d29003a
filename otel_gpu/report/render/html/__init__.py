"""
The document as one HTML file that loads nothing.

``page`` selects the contents, ``templates`` define the HTML, and ``markup`` converts text to
markup: every value of a template is sanitized there.
"""
