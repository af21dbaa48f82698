-- The numbers of rules/node, and the places of fields in lists; put in place of their names before the server gets
-- the script.
local SCHEMA = 1
local LARGEST_SCHEMA = 99

-- A record without a claim and with nothing to remember is no longer than this, and any other is.
local IDLE_BYTES = 12

local MAX_TOKEN = 9007199254740992
local HINT_SPAN = 60000000
local BROKEN_KEPT = 3600000000
local OVER_KEPT = 100

-- A text, since the server writes out numbers at length; Lua reckons with it all the same.
local RETENTION_MS = '86400000'
local NOT_EXPORTED = 'it was not exported with this secret, or another client adopted it'

-- So many values stand before the claim in a record.
local BEFORE_CLAIM = 3

-- Fields of a claim. The first of an attempt that is over is its owner, too.
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
