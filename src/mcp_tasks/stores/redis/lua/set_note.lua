-- Keep a note if the bytes that are there are those that were seen. Gives whether it was kept.

local note, token, seen, value = P .. take(), take(), take_list(), take()
if is_sealed_against(value) then
  return SEALED
end
local found = call('HMGET', note, 'v', 'w')
if found[2] == token then
  return 1
end
if (found[1] or nil) ~= seen[1] then
  return 0
end
call('HSET', note, 'v', value, 'w', token)
return 1
