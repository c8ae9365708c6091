"""Files of tensors and plain values, and the validation of those values."""
