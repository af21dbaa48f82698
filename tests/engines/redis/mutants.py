"""Scripts broken on purpose, one line each: the comparison with the rules must notice every one of them."""

from __future__ import annotations

from typing import NamedTuple

from engines.redis.twins import Change


class Mutant(NamedTuple):
    """What is wrong, and the text that is replaced to make it so."""

    what: str
    text: str
    instead: str

    def change(self) -> Change:
        return lambda source: source.replace(self.text, self.instead)


MUTANTS = (
    Mutant(
        "a release does not look whose it is",
        "local function release(record, ask, now)\n  local linger, nonce = tonumber(ask[1]), ask[2]",
        "local function release(record, ask, now)\n  local linger, nonce = tonumber(ask[1]), ask[2]\n"
        "  nonce = record.holders[1] and record.holders[1][NONCE] or nonce",
    ),
    Mutant(
        "the short release does not look whose it is",
        "nonce == ARGV[2] and expires_at > now",
        "type(nonce) == 'string' and expires_at > now",
    ),
    Mutant(
        "the short release does not look at the time",
        "nonce == ARGV[2] and expires_at > now",
        "nonce == ARGV[2]",
    ),
    Mutant("a token is the time alone", "math.max(record.token + 1, wall_us)", "wall_us"),
    Mutant("the short grant's token is the time alone", "wall_us > last and wall_us or last + 1", "wall_us"),
    Mutant("a token is a count alone", "math.max(record.token + 1, wall_us)", "record.token + 1"),
    Mutant("a token may be anything", "return token < MAX_TOKEN and token", "return token"),
    Mutant("the short grant's token may be anything", "if token < MAX_TOKEN then", "if token then"),
    Mutant(
        "tokens are rounded",
        "holder[TOKEN], exact(holder[TTL])",
        "exact(holder[TOKEN] + 1), exact(holder[TTL])",
    ),
    Mutant("times are rounded", "'>d', number", "'>d', math.floor(number * 1000) / 1000"),
    Mutant(
        "the short grant does not look whether it is held",
        "  is_idle = string.sub(raw, 1, #beginning) == beginning\n",
        "",
    ),
    Mutant("the short grant ignores max_hold", "#ARGV[5] == 2", "true"),
    Mutant(
        "the turn is not dealt when it is given back",
        "  deal_turns(record, now)\n  add_tombstone(",
        "  add_tombstone(",
    ),
    Mutant(
        "turns are not dealt when a place is taken",
        "  deal_turns(record, now)\n  return granted(record, holder, now, true), true",
        "  return granted(record, holder, now, true), true",
    ),
    Mutant(
        "a missed turn costs one place only",
        "not (is_any_late and late[client_of(waiter)])",
        "not (record.turns[place] and late[client_of(waiter)])",
    ),
    Mutant("turns are never missed", "local TURN_SECONDS = 2.0", "local TURN_SECONDS = 2000.0"),
    Mutant("everything ends a moment late", "while at and at <= now do", "while at and at < now do"),
    Mutant("newcomers pass those who wait", "  if fair then\n", "  if false then\n"),
    Mutant("nobody barges", "or not fair and admits", "or false and admits"),
    Mutant("a waiter is woken again and again", "if not had_turn[nonce] then", "if true then"),
    Mutant("nobody is woken", "if not had_turn[nonce] then", "if false then"),
    Mutant(
        "victims are not woken", "for _, victim in ipairs(victims or {}) do", "for _, victim in ipairs({}) do"
    ),
    Mutant("a new value is no news", "if after.value_is_new or", "if"),
    Mutant("renewals are news", "if after.value_is_new or", "if true or"),
    Mutant(
        "a late copy is granted",
        "  if ended then\n    return { 'gone', record",
        "  if false then\n    return { 'gone', record",
    ),
    Mutant("a withdrawn attempt is not remembered", "if linger <= 0 then", "if true then"),
    Mutant("all that ended is remembered", "while #ended > ENDED_KEPT do", "while false do"),
    Mutant(
        "a renewal shortens",
        "math.max(holder[EXPIRES_AT], capped(now + ttl, holder[UNTIL]))",
        "capped(now + ttl, holder[UNTIL])",
    ),
    Mutant("a renewal ignores max_hold", "capped(now + ttl, holder[UNTIL])", "now + ttl"),
    Mutant("a batch's renewal ignores max_hold", "if until_ and until_ < later then", "if false then"),
    Mutant("a batch renews what has expired", "mine == nonce and expires_at > now", "mine == nonce"),
    Mutant(
        "a batch's renewal keeps the old ttl",
        "mode, ttl, renews, until_, metadata), 'PX'",
        "mode, 1, renews, until_, metadata), 'PX'",
    ),
    Mutant(
        "a batch looks before all are refreshed",
        "  local at = next_event_at(record)\n  for _, waiter in ipairs(waiting) do",
        "  local at = now\n  for _, waiter in ipairs(waiting) do",
    ),
    Mutant(
        "adopting needs no export",
        "elseif holder[CLIENT] ~= client and (holder[CLIENT] ~= '' or holder[OWNER] ~= seal) then",
        "elseif false then",
    ),
    Mutant(
        "the secret is not compared",
        "(holder[CLIENT] ~= '' or holder[OWNER] ~= seal)",
        "holder[CLIENT] ~= ''",
    ),
    Mutant("the secret is not kept", "= '', seal, false", "= '', holder[OWNER], false"),
    Mutant(
        "a downgrade keeps its token",
        "reader_nonce, 'read', token, now\n",
        "reader_nonce, 'read', holder[TOKEN], now\n",
    ),
    Mutant(
        "breaking does not look at the token", "if not only or holder[TOKEN] == only then", "if true then"
    ),
    Mutant("one more than the limit", "return #held < record.limit", "return #held <= record.limit"),
    Mutant("readers and a writer", "if other == 'write' then", "if false then"),
    Mutant("any kind will do", "if not record.kind or record.kind == kind and", "if true or"),
    Mutant("in order never stops", "if ARGV[1] == '1' and step.what", "if false and step.what"),
    Mutant(
        "idle records are kept for ever", "local RETENTION_MS = 86400000", "local RETENTION_MS = 86400000000"
    ),
    Mutant("a short release forgets at once", "'KEEPTTL')\n    return", "'PX', '1000')\n    return"),
    Mutant("a short release is never forgotten", ", 'KEEPTTL')\n    return", ")\n    return"),
    Mutant("peers are not told", "if peer ~= holder and", "if false and"),
    Mutant("blockers are listed twice", "seen[holder[CLIENT]] = true", "seen[holder[CLIENT]] = nil"),
    Mutant(
        "in a crowd a release does not look whose it is",
        "#turns == 0 and holders[1][NONCE] == ARGV[2] and",
        "#turns == 0 and",
    ),
    Mutant(
        "in a crowd a release does not look at the time", "  holders[1][EXPIRES_AT] > now then", "  true then"
    ),
    Mutant(
        "in a crowd nobody is woken",
        "    notify(KEYS[1], client, nonce)\n",
        "",
    ),
    Mutant(
        "in a crowd a release deals no turn",
        "holders, turns = {}, { now }",
        "holders = {}",
    ),
    Mutant(
        "in a crowd it is handed to the first waiter whatever it wants",
        "wants and now - since <= CAME_SECONDS and token < MAX_TOKEN",
        "wants and token < MAX_TOKEN",
    ),
    Mutant(
        "in a crowd the successor's token is the time alone",
        "local token, latest = math.max(wall_us, last_token + 1), now\n",
        "local token, latest = wall_us, now\n",
    ),
    Mutant(
        "in a crowd the successor's token may be anything",
        "now - since <= CAME_SECONDS and token < MAX_TOKEN",
        "now - since <= CAME_SECONDS",
    ),
    Mutant(
        "in a crowd the successor keeps its place in the queue",
        "    table.remove(queue, 1)\n    table.remove(deadlines, 1)\n  else",
        "  else",
    ),
    Mutant(
        "in a crowd the successor is not told what it has",
        "notify(KEYS[1], client, nonce, token, now - since)",
        "(notify(KEYS[1], client, nonce) or true)",
    ),
    Mutant(
        "in a crowd the successor is not told for how long it waited",
        "notify(KEYS[1], client, nonce, token, now - since)",
        "notify(KEYS[1], client, nonce, token, 0)",
    ),
    Mutant(
        "it is handed to the first waiter whatever it wants",
        "wants and now - since <= CAME_SECONDS and not place_of",
        "wants and not place_of",
    ),
    Mutant(
        "it is handed to one that was ended",
        "now - since <= CAME_SECONDS and not place_of(record.ended, nonce) then",
        "now - since <= CAME_SECONDS then",
    ),
    Mutant(
        "the successor is not told what it has",
        "if token and notify(key, client, nonce, token, now - since) then",
        "if token and (notify(key, client, nonce) or true) then",
    ),
    Mutant(
        "the successor is not told for how long it waited",
        "if token and notify(key, client, nonce, token, now - since) then",
        "if token and notify(key, client, nonce, token, 0) then",
    ),
    Mutant(
        "what is handed over is not dated",
        "granted(record, holder, now, false, math.max(now - holder[SINCE], 0))",
        "granted(record, holder, now, false)",
    ),
    Mutant(
        "it is handed over where others may barge",
        "kind == 'lock' and fair and #options == 2 and ask[2]",
        "kind == 'lock' and #options == 2 and ask[2]",
    ),
    Mutant(
        "it is handed over for longer than it may be held",
        "kind == 'lock' and fair and #options == 2 and ask[2]",
        "kind == 'lock' and fair and ask[2]",
    ),
    Mutant(
        "in a crowd a turn is open to every client",
        "== ARGV[1] and cmsgpack.unpack(queue[1]) == ARGV[6] then",
        "== ARGV[1] then",
    ),
    Mutant(
        "in a crowd a turn has no end",
        "#turns == 1 and turns[1] + TURN_SECONDS > now and",
        "#turns == 1 and",
    ),
    Mutant(
        "in a crowd a token is the time alone",
        "math.max(wall_us, last_token + 1), now + ARGV[3]",
        "wall_us, now + ARGV[3]",
    ),
    Mutant(
        "in a crowd those who gave up keep their places",
        "is_contended = is_contended and deadlines[place] > now",
        "is_contended = is_contended",
    ),
    Mutant(
        "in a crowd watchers are not told",
        "#queue > 0 and #ended + #watchers == 0",
        "#queue > 0 and #ended == 0",
    ),
    Mutant(
        "in a crowd late copies are granted",
        "#queue > 0 and #ended + #watchers == 0",
        "#queue > 0 and #watchers == 0",
    ),
    Mutant("one who waits already joins a crowd again", "  if not waits then\n", "  if true then\n"),
    Mutant(
        "one who holds it joins the crowd that waits for it",
        "holders[1][NONCE] ~= ARGV[6] and string.sub",
        "string.sub",
    ),
    Mutant(
        "who joins a crowd does not look whether the holder's time is over",
        "#turns == 0 and holders[1][EXPIRES_AT] > now and\n  holders[1][NONCE] ~=",
        "#turns == 0 and\n  holders[1][NONCE] ~=",
    ),
    Mutant("who joins a crowd is asked to wait, not to barge", "ARGV[5] == WAITS_IN_TURN", "ARGV[5] ~= '01'"),
    Mutant(
        "a crowd is joined by those who want another kind",
        "holders[1][NONCE] ~= ARGV[6] and string.sub(raw, 3, 2 + #ARGV[1]) == ARGV[1]",
        "holders[1][NONCE] ~= ARGV[6]",
    ),
    Mutant(
        "who joins a crowd is forgotten late",
        "local deadline = now + PATIENCE_SECONDS",
        "local deadline = now + PATIENCE_SECONDS + 1",
    ),
    Mutant("who joins a crowd looks late", "(place - 1) * TURN_SECONDS)", "place * TURN_SECONDS)"),
    Mutant("a newcomer gets one blocker twice", "before ~= '' and before ~= holder", "before ~= ''"),
    Mutant("who joins a crowd does not look at deadlines", "math.min(soonest, deadlines[other])", "soonest"),
    Mutant("the holder is not told to who joins a crowd", "  if holder ~= '' then\n", "  if false then\n"),
)
