"""One thin function per command: options in, work done elsewhere, files out."""
