"""Any transformers decoder with any connection: attach, convert, save and load, and the shipped checkpoint forms."""
