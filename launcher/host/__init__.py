"""Facts about a host, read below a root from sysfs, procfs and the process's environment.

No vendor tool, no subprocess, no import of anything heavy. Because everything is read below a root,
the captured tree of another host is read the same way. `launcher.detect` puts the facts together.
"""
