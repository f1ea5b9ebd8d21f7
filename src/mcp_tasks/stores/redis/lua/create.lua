-- Keep a new task, unless one stands under its key. Gives `made` and whether it is dispatched, `exists`, `standing` with
-- the task that stands there, or `spent` if that is gone or has expired and the key outlives it; with the id of the task
-- if its parent is open, and without one if its parent has ended or is gone.

local id, version, namespace, owner = take(), take(), take(), take_list()
local state, request, status, ended = take(), take(), take(), take()
local created, expires, milliseconds = tonumber(take()), optional(take()), optional(take())
local key, until_end, outlives = optional(take()), take() == '1', optional(take())
local parent, indexed, share, hint = optional(take()), take_indexed(), take_share(), take_list()

if is_sealed_against(state) then
  return SEALED
end

local row = P .. 't:' .. id

local standing = key and call('GET', P .. key)
local gives_way, loses_key = false, false
local ends = key and not until_end and call('ZSCORE', P .. 'spent', key)
if standing then
  local found = call('HMGET', P .. 't:' .. standing, 'v', 'f', 'e', 'o', 'n', 's', 'ko')
  if found[1] then
    loses_key = until_end and found[2] == '1'
    gives_way = not loses_key and found[3] and tonumber(found[3]) <= created
    if not loses_key and not gives_way then
      return { 'standing', standing, found[4], found[5], found[6] }
    end
    ends = gives_way and found[7] and tonumber(found[3]) + tonumber(found[7])
  end
end
if parent then
  local found = call('HMGET', P .. 't:' .. parent, 'v', 'f')
  if not found[1] or found[2] == '1' then
    if not until_end then
      return { 'spent' }
    end
    parent = nil
  end
end
local child = parent and not until_end and call('HGET', P .. 'children:' .. parent, key)
if child then
  return { 'spent', child }
end
if ends and tonumber(ends) > created then
  return { 'spent' }
end
if call('EXISTS', row) == 1 then
  return { 'exists' }
end

local line, handed = indexed.line, false
if share and is_queued(indexed) then
  handed = route_room(share, line[NAMESPACE], line[QUEUE], line[OWNER], line[TOOL]) > 0
    and owner_room(share, line[NAMESPACE], line[OWNER]) > 0
    and tool_room(share, line[NAMESPACE], line[TOOL]) > 0
end

indexed.size = #request
local packed = pack(indexed)
local fields = { 'v', version, 's', state, 'n', namespace, 'st', status, 'r', request, 'ix', packed }
local others = {
  o = owner[1], f = optional(ended), e = expires, k = key, h = handed and '1' or nil,
  ko = key and outlives, kc = key and outlives and string.format('%.0f', created),
}
for field, value in pairs(others) do
  fields[#fields + 1] = field
  fields[#fields + 1] = value
end
call('HSET', row, unpack(fields))
if loses_key then
  call('HDEL', P .. 't:' .. standing, 'k')
elseif gives_way then
  forget(standing)
end
if key then
  call('ZREM', P .. 'spent', key)
  call('SET', P .. key, id)
  if parent then
    call('HSET', P .. 'children:' .. parent, key, id)
  end
end
reindex(id, NOWHERE, false, indexed, handed)
keep_for(id, milliseconds, packed, key, false, key and outlives)
if is_queued(indexed) then
  call('PUBLISH', hint[1], hint[2])
end
return { 'made', handed and '1' or '0' }
