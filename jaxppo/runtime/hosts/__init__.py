"""Where a run takes place: devices, processes of several hosts, their clusters and signals.

Nothing here knows what is trained.
"""
