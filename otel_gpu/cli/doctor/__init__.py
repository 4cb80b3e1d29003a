"""What this host and its programs allow, checked one by one."""
