"""Object stores and HDFS: emulators and servers that speak the real protocols, installed by `make stores`."""
