"""From a text to the best model for it in a given time: `ncelm.fit`."""
