"""Parameters, MACs, RAM and flash as functions of the widths."""
