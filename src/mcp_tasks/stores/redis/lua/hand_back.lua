-- A task is not in the hands of an engine any more.

local id = take()
local row = P .. 't:' .. id
local found = call('HMGET', row, 'ix', 'h')
if found[2] == '1' then
  local indexed = unpacked(found[1])
  reindex(id, indexed, true, indexed, false)
  call('HDEL', row, 'h')
end
return 0
