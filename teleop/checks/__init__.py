"""What must be well before an arm is used: each thing is checked by one function here.

`gaploop doctor` says what is connected and how to fix it; `gaploop preflight` says whether a policy
may move the arm. What can't be measured is asked.
"""
