"""A proof that everybody can repeat: `make prove`, explained in docs/proof.md.

Real processes take real locks on a real server and are killed, stopped and cut off, and two judges
say of each recorded history whether a lock that keeps its promises could have given it. Then
mistakes are written into the histories, and the judges have to refuse each of them. The parts:

    kinds.py      the locks
    deeds.py      what is done under them: once, ticks, notes, tasks
    messages.py   the task queue
    nemeses.py    what is done to them, and what each promises under it: the table
    court.py      records a history (tests/faults/torture) and asks both judges
    solver.py     the second judge, z3; the first is tests/faults/torture/checker.py
    planted.py    the mistakes
    export.py     histories for other judges
"""
