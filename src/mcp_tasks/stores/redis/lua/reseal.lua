-- Put new bytes in the place of a field of a row, or of an entry of a journal, if it is still what was seen. Gives whether
-- it was. What is encrypted is longer, so the size of the task is counted anew.

local kind, name, place, seen = take(), take(), take(), take()
local key = P .. name

local function grow(id, by)
  local row = P .. 't:' .. id
  local found = call('HMGET', row, 'ix', 'h', 'z')
  local before, after = unpacked(found[1]), unpacked(found[1])
  if by == 0 or #before.places == 0 then
    return
  end
  local size = tonumber(found[3]) + by
  for i = 1, #after.places, 2 do
    if string.sub(after.places[i], 1, 6) == 'sized:' then
      after.places[i + 1] = sized(size)
    end
  end
  local packed = pack(after)
  call('HSET', row, 'z', string.format('%.0f', size), 'ix', packed)
  if call('HEXISTS', P .. 'left', id) == 1 then
    call('HSET', P .. 'left', id, packed)
  end
  reindex(id, before, found[2] == '1', after, found[2] == '1')
end

if kind == 'field' then
  if call('HGET', key, place) ~= seen then
    return 0
  end
  local new = take()
  call('HSET', key, place, new)
  if string.sub(name, 1, 2) == 't:' and place ~= 's' then
    grow(string.sub(name, 3), #new - #seen)
  end
  return 1
end
local index = tonumber(place)
if call('LINDEX', key, index + 1) ~= seen then
  return 0
end
local new_name, new = take(), take()
call('LSET', key, index, new_name)
call('LSET', key, index + 1, new)
grow(string.sub(name, 3), #new - #seen)
return 1
