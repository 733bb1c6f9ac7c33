//! `calico uninstall`: takes back what was installed (INST-149).
