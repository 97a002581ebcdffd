"""What the machine grants: processors, memory, control groups."""
