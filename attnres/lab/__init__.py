"""The paper's questions at laptop scale: many runs each, and one small JSON record of what they gave."""
