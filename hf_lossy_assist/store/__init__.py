"""Folders of data that runs add to: each holds data of one plan, and stays whole if a process is killed."""
