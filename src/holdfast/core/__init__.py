"""What every protocol stands on: operation values, deadlines, checked arguments."""
