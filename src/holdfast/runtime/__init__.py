"""What drivers and engines share of the machine: clocks, forks, identity, wake-ups, pools, sockets."""
