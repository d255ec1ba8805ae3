"""The world: nodes, client processes, network, disks and clocks on one line of virtual time."""
