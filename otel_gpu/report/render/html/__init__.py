"""
The document as one HTML file that needs nothing else: no network, no other file.

``page`` chooses what is in it, ``templates`` say how it is written, and ``markup`` is where text
becomes markup: whatever a template puts in is made inert there.
"""
