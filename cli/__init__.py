"""The command line, `fedlora ...`: one command a file, heavy imports inside the command."""
