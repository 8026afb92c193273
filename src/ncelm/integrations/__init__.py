"""Plug-ins for programs that filter and process corpora."""
