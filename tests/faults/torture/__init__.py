"""Many processes at one lock, killed and stopped at random, and a proof of what they saw.

`make prove` runs it with all kinds of locks, and `make peers` with other libraries. The parts:

    worker.py     a process that takes the lock again and again, and writes down what it saw
    arena.py      starts them, kills and stops them, replaces the dead
    register.py   what they write to under the lock: it refuses a fencing token that is too old
    history.py    the common journal, and what it says of each attempt
    linearize.py  whether there is an order in which a plain lease would have answered the same
    checker.py    the rules, and the figures
    story.py      histories that tests write by hand
"""
