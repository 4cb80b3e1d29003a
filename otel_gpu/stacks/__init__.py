"""
User stacks: a copied stack and Python frames in, one merged stack out.

A sample holds what only the moment itself can tell: registers, the top of the stack, the
Python frames. Here it meets what keeps: what the process maps, unwind tables, symbols,
line tables. That has to be done on the host of the process, so the result goes into the
stream of records (RECORD_USER_STACK), and a replay needs none of it.
"""
