-- The constants of rules/node, and the places of fields in lists. They are put in place of their names before the
-- server gets the script.
local SCHEMA = 1
local LARGEST_SCHEMA = 99

-- A record without a claim and without tombstones is no longer than this. Every other record is longer.
local IDLE_BYTES = 12

local MAX_TOKEN = 9007199254740992
local HINT_SPAN = 60000000
local BROKEN_KEPT = 3600000000
local TOMBSTONES_MAX = 100

-- A text, because the server would write a number in exponent form. Lua converts it in arithmetic.
local RETENTION_MS = '86400000'
local NOT_EXPORTED = 'it was not exported with this secret, or another client adopted it'

-- The number of values before the claim in a record.
local BEFORE_CLAIM = 3

-- Fields of a claim. The first field of a tombstone is the owner, too.
local OWNER = 1
local NUMBER = 2
local SINCE = 3
local EXPIRES_AT = 4
local TTL = 5
local UNTIL = 6
local CLIENT = 7
local LABEL = 8
local METADATA = 9
local TOKEN = 10

local REASON = 2
local NOTE = 3
local FORGET_AT = 4
