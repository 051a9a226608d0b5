"""What `attnres bench` measures: one part per file, which defines `measure(setting) -> list[RatioRow]`."""
