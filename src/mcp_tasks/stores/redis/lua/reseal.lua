-- Put new bytes in the place of a field of a row, or of an entry of a journal, if it is still what was seen. Gives whether
-- it was. Encrypted bytes are longer, so the size of the task changes.

local kind, name, place, seen = take(), take(), take(), take()
local key, new = P .. name, nil

if kind == 'field' then
  if call('HGET', key, place) ~= seen then
    return 0
  end
  new = take()
  call('HSET', key, place, new)
else
  local index = tonumber(place)
  if call('LINDEX', key, index + 1) ~= seen then
    return 0
  end
  call('LSET', key, index, take())
  new = take()
  call('LSET', key, index + 1, new)
end
if string.sub(name, 1, 5) ~= 'note:' and place ~= 's' then
  local id = string.sub(name, 3)
  local found = call('HMGET', P .. 't:' .. id, 'ix', 'h')
  local before, after = unpacked(found[1]), unpacked(found[1])
  if before ~= NOWHERE then
    after.size = before.size + #new - #seen
    local packed = pack(after)
    call('HSET', P .. 't:' .. id, 'ix', packed)
    if call('HEXISTS', P .. 'left', id) == 1 then
      call('HSET', P .. 'left', id, packed)
    end
    reindex(id, before, found[2] == '1', after, found[2] == '1')
  end
end
return 1
