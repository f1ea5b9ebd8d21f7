-- Put new bytes in the place of a field of a row, or of an entry of a journal, if it is still what was seen. Gives whether
-- it was.

local kind, key, place, seen = take(), P .. take(), take(), take()
if kind == 'field' then
  if call('HGET', key, place) ~= seen then
    return 0
  end
  call('HSET', key, place, take())
  return 1
end
local index = tonumber(place)
if call('LINDEX', key, index + 1) ~= seen then
  return 0
end
call('LSET', key, index, take())
call('LSET', key, index + 1, take())
return 1
