"""Pure rules: what a record is and what each request does to it. No clock, no I/O, no chance."""
