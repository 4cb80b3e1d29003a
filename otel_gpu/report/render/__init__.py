"""
Renderers of the document: text, HTML, the screen of ``top``, flame graphs and exchange formats.
"""
