"""Reproduction of the tables of Mnih & Teh (2012), with reports and plots, and the demonstration."""
