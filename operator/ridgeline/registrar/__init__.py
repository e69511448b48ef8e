"""The registrar: keeps one router's worker table equal to the role labels of a fleet's pods.

It runs beside every router. Level-triggered: each pass lists the table, compares it with the pods and
sends the difference, on every change and every two seconds; nothing that was sent before is remembered.
So a restarted router (empty table), a restarted registrar and an API server that was away all heal the
same way. While the API server is away the last known pods stand.
"""
