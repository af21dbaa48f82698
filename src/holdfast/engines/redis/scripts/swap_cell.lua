#!lua
-- SwapCell. KEYS: the value. ARGV: the expected version, the data.
--@include rules/constants
--@include clock
--@include rules/cell

return swap_cell(KEYS[1], tonumber(ARGV[1]), ARGV[2], wall_us)
