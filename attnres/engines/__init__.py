"""Plug-ins that inference engines load by themselves if attnres is installed with them."""
