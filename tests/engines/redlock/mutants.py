"""Scripts of a node broken on purpose: the comparison with the rule must notice every one of them."""

from __future__ import annotations

from typing import NamedTuple

from engines.redlock.twins import Change


class Mutant(NamedTuple):
    """What is wrong, and the text that is replaced to make it so."""

    what: str
    text: str
    instead: str

    def change(self) -> Change:
        return lambda source: source.replace(self.text, self.instead)


IDLE = """if raw and #raw <= IDLE_BYTES then
  local is_read, schema, fence, tombstones, owner = pcall(cmsgpack.unpack, raw)
  is_idle, last = is_read and schema == SCHEMA and tombstones == false and owner == false, fence
"""

MUTANTS = (
    Mutant("any mark will do", "if mark[1] ~= ARGV[1] then", "if false then"),
    Mutant("hints from far ahead", "if hint - now > HINT_SPAN or now", "if now"),
    Mutant("hints from long ago", " or now - hint > HINT_SPAN", ""),
    Mutant("a number is the hint alone", "math.max(fence + 1, hint)", "hint"),
    Mutant("a number is a count alone", "math.max(fence + 1, hint)", "fence + 1"),
    Mutant("the largest number is issued again", "math.max(fence + 1, hint)", "math.max(fence, hint)"),
    Mutant(
        "a late copy is granted",
        "if ended then\n  if ended[REASON]",
        "if false then\n  if ended[REASON]",
    ),
    Mutant(
        "a copy gets another number",
        "    return claim[NUMBER]\n  end\n  local",
        "    return now\n  end\n  local",
    ),
    Mutant("a late copy is remembered", "if ended[REASON] == 'withdrawn' then", "if false then"),
    Mutant("held is no obstacle", "if not is_meant then", "if false then"),
    Mutant("nobody is broken", "is_meant = is_meant or ARGV[place] == claim[OWNER]", "is_meant = false"),
    Mutant(
        "the broken are forgotten",
        "tombstones[#tombstones + 1] = { ARGV[place], 'broken'",
        "local _ = { ARGV[place], 'broken'",
    ),
    Mutant(
        "only those who have it are broken",
        "if not tombstone_of(tombstones, ARGV[place], now) then",
        "if claim and claim[OWNER] == ARGV[place] then",
    ),
    Mutant(
        "a token that is known is not kept",
        "label, metadata, token }, tombstones)",
        "label, metadata, 0 }, tombstones)",
    ),
    Mutant("all broken are kept for the breaker's ttl", "and claim[TTL] or ttl", "and ttl or ttl"),
    Mutant("a claim outlives max_hold", "capped(now + ttl, until_)", "now + ttl"),
    Mutant("a claim never runs out", "claim and claim[EXPIRES_AT] > now and claim", "claim"),
    Mutant(
        "everything ends a moment late",
        "claim and claim[EXPIRES_AT] > now",
        "claim and claim[EXPIRES_AT] >= now",
    ),
    Mutant(
        "a stamp needs no claim",
        "if not claim or claim[OWNER] ~= owner then\n"
        "  return lost(tombstones, claim, owner, now)\nend\nif number",
        "claim = claim or { owner, 0, now, now, 0, 0, '', '', '', 0 }\nif number",
    ),
    Mutant("a smaller number is stamped", "if number <= fence or", "if"),
    Mutant(
        "a stamp leaves the fence",
        "store(KEYS[1], now, number, claim, tombstones)",
        "store(KEYS[1], now, fence, claim, tombstones)",
    ),
    Mutant("a stamp leaves the claim", "claim[NUMBER] = number\n", ""),
    Mutant(
        "a release does not look whose it is",
        "if claim and claim[OWNER] == owner then\n  store",
        "if claim then\n  store",
    ),
    Mutant(
        "a release forgets the fence",
        "store(KEYS[1], now, fence, false, tombstones)",
        "store(KEYS[1], now, 0, false, tombstones)",
    ),
    Mutant("a release of nothing is not remembered", "if linger > 0 then", "if false then"),
    Mutant("it is remembered for less", "ended[FORGET_AT] < now + linger", "ended[FORGET_AT] == 0"),
    Mutant(
        "what is over is never forgotten",
        "if ended[FORGET_AT] > now and ended[OWNER] ~= except",
        "if ended[OWNER] ~= except",
    ),
    Mutant(
        "a renewal does not look whose it is",
        "if not claim or claim[OWNER] ~= owner then\n"
        "  return lost(tombstones, claim, owner, now)\nend\nclaim[TTL]",
        "if not claim then\n  return lost(tombstones, claim, owner, now)\nend\nclaim[TTL]",
    ),
    Mutant(
        "a renewal shortens",
        "math.max(claim[EXPIRES_AT], capped(expires_at, claim[UNTIL]))",
        "capped(expires_at, claim[UNTIL])",
    ),
    Mutant(
        "a renewal ignores max_hold",
        "math.max(claim[EXPIRES_AT], capped(expires_at, claim[UNTIL]))",
        "math.max(claim[EXPIRES_AT], expires_at)",
    ),
    Mutant(
        "an export keeps its client",
        "claim[CLIENT], claim[TOKEN], claim[EXPIRES_AT] = ''",
        "claim[CLIENT], claim[TOKEN], claim[EXPIRES_AT] = claim[CLIENT]",
    ),
    Mutant(
        "adopting needs no export",
        "if claim[CLIENT] ~= client and (claim[CLIENT] ~= '' or claim[LABEL] ~= ARGV[5]) then",
        "if false then",
    ),
    Mutant(
        "the secret is not compared",
        "(claim[CLIENT] ~= '' or claim[LABEL] ~= ARGV[5])",
        "claim[CLIENT] ~= ''",
    ),
    Mutant("the secret is not kept", "claim[LABEL] = ARGV[4]\n", ""),
    Mutant("the longest ttl is not noted", "if ttl > (tonumber(longest) or 0) then", "if false then"),
    Mutant("the last ttl counts", "if ttl > (tonumber(longest) or 0) then", "if true then"),
    Mutant(
        "who was broken is not told why",
        "return { 'lost', ended[REASON], ended[NOTE] }\n  end",
        "return { 'lost', 'expired', '' }\n  end",
    ),
    Mutant("the short grant's number is the hint alone", "hint > last and hint or last + 1", "hint"),
    Mutant("the short grant ignores max_hold", "if is_idle and not ARGV[7] and", "if is_idle and"),
    Mutant(
        "the short grant does not note its ttl",
        "and (mark[2] == ARGV[4] or tonumber(ARGV[4]) <= (tonumber(mark[2]) or 0)) then",
        "then",
    ),
    Mutant(
        "the short grant takes what is held",
        IDLE,
        IDLE.replace(" and #raw <= IDLE_BYTES", "").replace(" and owner == false", ""),
    ),
    Mutant(
        "the short grant forgets what is over",
        IDLE,
        IDLE.replace(" and #raw <= IDLE_BYTES", "").replace(" and tombstones == false", ""),
    ),
    Mutant("the short grant forgets the fence", "is_idle, last = is_read", "is_idle = is_read"),
    Mutant("the short grant never runs out", "number, now, now + ARGV[4])", "number, now, MAX_TOKEN)"),
    Mutant(
        "the short grant began with its number",
        "number, now, now + ARGV[4])",
        "number, number, now + ARGV[4])",
    ),
    Mutant(
        "the short grant does not say who has it",
        ".. ARGV[6], 'PX'",
        ".. cmsgpack.pack(tonumber(ARGV[4]), 0, '', '', '', 0), 'PX'",
    ),
    Mutant(
        "the short grant can not be renewed",
        ".. ARGV[6], 'PX'",
        ".. cmsgpack.pack(tonumber(ARGV[4]), now + ARGV[4], select(3, cmsgpack.unpack(ARGV[6]))), 'PX'",
    ),
    Mutant("the short grant is kept for less", "'PX', ARGV[5])", "'PX', RETENTION_MS - 30000)"),
    Mutant(
        "the long grant takes one field for another",
        "local ttl, _, client, label, metadata, token = cmsgpack",
        "local ttl, _, label, client, metadata, token = cmsgpack",
    ),
    Mutant(
        "the first of many to lose it is overlooked", "for place = 9, #ARGV do", "for place = 10, #ARGV do"
    ),
    Mutant("the note is one of those who lose it", "'broken', ARGV[8]", "'broken', ARGV[9]"),
    Mutant("a claim is read from too far behind", "{ unpack(values, 5) }", "{ unpack(values, 6) }"),
    Mutant("a claim is read from too far ahead", "{ unpack(values, 5) }", "{ unpack(values, 4) }"),
    Mutant("what is over is not stored", "#tombstones > 0 and tombstones", "false"),
    Mutant("a claim is not stored", "unpack(claim or { false })", "false"),
    Mutant(
        "the short release does not look whose it is",
        "owner == ARGV[1] and expires_at > now then",
        "owner and expires_at > now then",
    ),
    Mutant(
        "the short release does not look at the time",
        "owner == ARGV[1] and expires_at > now then",
        "owner == ARGV[1] then",
    ),
    Mutant(
        "the short release takes the number for the time", "owner, _, _, expires_at =", "owner, expires_at ="
    ),
    Mutant(
        "the short release forgets what is over",
        "tombstones == false and owner == ARGV[1]",
        "owner == ARGV[1]",
    ),
    Mutant(
        "the short release forgets the fence",
        "cmsgpack.pack(SCHEMA, fence, false, false)",
        "cmsgpack.pack(SCHEMA, 1, false, false)",
    ),
    Mutant(
        "idle records are kept for ever",
        "local RETENTION_MS = '86400000'",
        "local RETENTION_MS = '86400000000'",
    ),
    Mutant("numbers are rounded", "'view', now, fence,", "'view', now, fence - fence % 10,"),
)
