"""Estimators as pure functions of scores, and the reference equations."""
