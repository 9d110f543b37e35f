"""The steps of preparing a claim that change hardware, each with its undo.

Every step writes what it is about to do into the claim's held file before its effect, and its undo may be
repeated at any time: after a kill between any two instructions the next process finishes or undoes it.
"""
