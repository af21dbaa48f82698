"""What every protocol uses: effects, deadlines, checked arguments."""
