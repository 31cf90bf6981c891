"""What must be well before an arm is used: each thing is checked by one function here.

`gaploop doctor` says what is connected and how to fix it, and, with `--robot` and `--policy.path`,
whether a policy may move that arm. What can't be measured is asked.
"""
