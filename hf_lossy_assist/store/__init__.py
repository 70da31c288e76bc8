"""Folders of data that runs add to: whole whenever a process is killed, and of one plan alone."""
