-- Replace a task that is still at the expected version, append to its journal, keep its outcome. Gives `saved`,
-- `conflict`, or which limit was reached: `tool` or `owner`.

local id, expected, version = take(), take(), take()
local state, status, ended = take(), take(), take()
local expires, milliseconds, indexed = optional(take()), optional(take()), take_indexed()
local entries, outcome, limits, hint = take_list(), take_list(), take_list(), take_list()

if is_sealed_against(state) then
  return SEALED
end

local row, journal = P .. 't:' .. id, P .. 'j:' .. id

local found = call('HMGET', row, 'v', 'ix', 'h', 'k', 'f', 'e', 'ko')
if found[1] ~= expected then
  return 'conflict'
end

local before, was_handed = unpacked(found[2]), found[3] == '1'

-- Triples: what is limited, to how many, and the index of those at work. Of them those that are resuming stand at '1',
-- and only what is at work counts against them.
local stood = map_of(before, was_handed)
for i = 1, #limits, 3 do
  local index = limits[i + 2]
  local place, others = stood[index], 0
  if place == '1' then
    others = call('ZLEXCOUNT', P .. index, '-', '(1')
  else
    others = call('ZCARD', P .. index) - (place and 1 or 0)
  end
  if others >= tonumber(limits[i + 1]) then
    return limits[i]
  end
end

local stays_queued = is_queued(before) and is_queued(indexed)
if stays_queued then
  indexed.line[SINCE] = before.line[SINCE]
end
local handed = stays_queued and was_handed

indexed.size = before.size
for i = 3, #entries, 3 do
  indexed.size = indexed.size + #entries[i]
end
if #outcome > 0 then
  -- An outcome may take the place of another.
  local replaced = call('HSTRLEN', row, 'b') + call('HSTRLEN', row, 'm')
  indexed.size = indexed.size + #outcome[1] + #(outcome[2] or '') - replaced
end

local packed = pack(indexed)
call('HSET', row, 'v', version, 's', state, 'st', status, 'ix', packed)
for field, change in pairs({ f = { found[5], ended }, e = { found[6], expires or '' } }) do
  if change[2] ~= '' then
    call('HSET', row, field, change[2])
  elseif change[1] then
    call('HDEL', row, field)
  end
end
if was_handed and not handed then
  call('HDEL', row, 'h')
end
for i = 1, #entries, 3 do
  call('RPUSH', journal, entries[i], entries[i + 1], entries[i + 2])
end
if #outcome > 0 then
  call('HSET', row, 'b', outcome[1])
  if outcome[2] then
    call('HSET', row, 'm', outcome[2])
  else
    call('HDEL', row, 'm')
  end
end
if ended == '1' then
  forget_children(id)
end
reindex(id, before, was_handed, indexed, handed)
keep_for(id, milliseconds, packed, found[4], found[5] == '1', found[4] and found[7])
call('PUBLISH', hint[1], hint[2])
return 'saved'
