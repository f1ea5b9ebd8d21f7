-- Keep a note if the bytes that are there are those that were seen. Gives whether it was kept.

local note, seen, value = P .. take(), take_list(), take()
if is_sealed_against(value) then
  return SEALED
end
if (call('HGET', note, 'v') or nil) ~= seen[1] then
  return 0
end
call('HSET', note, 'v', value)
return 1
