"""Calibration: settings with a bounded loss."""
