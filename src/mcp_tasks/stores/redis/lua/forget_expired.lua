-- Forget tasks that have expired before a place, the first ones. Gives whether it came to the end of those, and of each
-- its version and its id, and if they are wanted its owner, its namespace and its state. Those that the server removed by
-- itself leave the indexes. Of the keys that outlived their tasks until now, some are forgotten as well.

local before, limit, looks, states = take(), tonumber(take()), tonumber(take()), take() == '1'
local now, keys = take(), take()

local over = call('ZRANGEBYSCORE', P .. 'spent', '-inf', now, 'LIMIT', 0, keys)
if #over > 0 then
  call('ZREM', P .. 'spent', unpack(over))
end

local found = {}
for _ = 1, looks do
  local member = #found < limit and call('ZRANGEBYLEX', P .. 'expiring', '-', '(' .. before, 'LIMIT', 0, 1)[1]
  if not member then
    return { 1, found }
  end
  local id = string.sub(member, 17)
  local row = call('HMGET', P .. 't:' .. id, 'v', 'o', 'n', 's')
  -- First: a server without memory refuses a script at its first write, unless that one only frees memory. Also where
  -- the task's places are damaged.
  call('ZREM', P .. 'expiring', member)
  if row[1] then
    found[#found + 1] = states and { row[1], id, row[2], row[3], row[4] } or { row[1], id }
    forget(id)
  else
    reindex(id, unpacked(call('HGET', P .. 'left', id)), false, NOWHERE, false)
    call('HDEL', P .. 'left', id)
  end
end
return { 0, found }
