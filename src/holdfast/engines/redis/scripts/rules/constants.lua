-- The numbers of rules/record.py and rules/transitions.py, and the places of fields in lists. They are put in
-- place of their names before the server gets the script: functions are made anew by every call, and each name
-- that they refer to costs time.

-- Of the records that these scripts write; what begins with a larger byte than the largest is no record.
local SCHEMA = 1
local LARGEST_SCHEMA = 31

-- What follows behind the token, and how records begin: with the schema and the shape.
local IDLE = 0
local HELD_BY_ONE = 1
local FULL = 2
local BEGINS_IDLE = '\1\0'
local BEGINS_HELD_BY_ONE = '\1\1'
local BEGINS_FULL = '\1\2'

-- What one asks for who waits and lets others before it, and wants nothing special.
local WAITS_IN_TURN = '11'

local TURN_SECONDS = 2.0
local CAME_SECONDS = 0.1
local PATIENCE_SECONDS = 5.0
local RETENTION_MS = 86400000
local MAX_TOKEN = 9007199254740992

-- Fields of holders. None is false: a list must not have holes.
local NONCE = 1
local SINCE = 2
local EXPIRES_AT = 3
local TOKEN = 4
local CLIENT = 5
local OWNER = 6
local MODE = 7
local TTL = 8
local RENEWS = 9
local UNTIL = 10
local METADATA = 11

-- Fields of attempts that were ended, and of watchers; the first is the nonce.
local REASON = 2
local NOTE = 3
local FORGET_AT = 4
local WATCHING = 2
local WATCHES_UNTIL = 3

-- Of attempts that were ended so many are remembered, and broken ones so long beyond their ttl.
local ENDED_KEPT = 100
local BROKEN_KEPT_SECONDS = 3600.0

-- The answer of what is done and needs no more words.
local DONE = 1
