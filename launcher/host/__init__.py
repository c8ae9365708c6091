"""Facts about a host, read below a root from sysfs and procfs, without a subprocess."""
