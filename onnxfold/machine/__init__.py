"""Resources that the machine grants: processors, memory, control groups."""
