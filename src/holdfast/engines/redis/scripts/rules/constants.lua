-- The constants of rules/record.py and rules/transitions.py, and the places of fields in lists. They are put in place
-- of their names before the server gets the script: every call creates the functions again, and each outer name that a
-- function refers to costs time.

-- The schema of the records that these scripts write. A value that begins with a larger byte is no record.
local SCHEMA = 1
local LARGEST_SCHEMA = 31

-- The shape says what follows the token. A record begins with the schema and the shape.
local IDLE = 0
local HELD_BY_ONE = 1
local FULL = 2
local BEGINS_IDLE = '\1\0'
local BEGINS_HELD_BY_ONE = '\1\1'
local BEGINS_FULL = '\1\2'

-- The options of an acquire that waits, is fair, and has no others.
local WAITS_IN_TURN = '11'

local TURN_SECONDS = 2.0
local CAME_SECONDS = 0.1
local PATIENCE_SECONDS = 5.0
local RETENTION_MS = 86400000
local MAX_TOKEN = 9007199254740992

-- Fields of holders. None is stored as false: a list must not have holes.
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

-- Fields of tombstones and of watchers. The first field is the nonce.
local REASON = 2
local NOTE = 3
local FORGET_AT = 4
local WATCHING = 2
local WATCHES_UNTIL = 3

-- The largest number of tombstones, and how long the tombstone of a broken attempt outlives its ttl.
local ENDED_KEPT = 100
local BROKEN_KEPT_SECONDS = 3600.0

-- The answer of a request that succeeded and has no result.
local DONE = 1
