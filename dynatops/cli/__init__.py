"""The command line: one module for each group of commands, loaded when it is used."""
