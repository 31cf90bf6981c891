"""The operator's side of recording: the state of a session, its keys, and what is shown.

`machine` is pure: no time, no device, no file. `console` ties it to a session, `view` says what to
show, `window` and `terminal` show it, `keys` names what is pressed.
"""
