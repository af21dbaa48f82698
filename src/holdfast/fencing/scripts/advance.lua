-- Behind fence.lua: nothing more is written.
return {1}
