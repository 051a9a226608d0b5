"""What inference engines load by themselves where attnres is installed beside them."""
