"""
User stacks: makes one merged stack of a copied stack and Python frames.

A sample contains registers, the top of the stack and Python frames. This package adds the mappings,
unwind tables, symbols and line tables of the process. It must run on the host of the process, so the
result goes into the stream of records (RECORD_USER_STACK), and a replay does not need this package.
"""
