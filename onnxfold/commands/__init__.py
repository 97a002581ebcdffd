"""Commands of the command line, one file each: arguments and printing, nothing else."""
