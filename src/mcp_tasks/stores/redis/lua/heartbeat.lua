-- Keep the count of a worker, unless it is more already. Gives the count before.
-- A worker beats for one namespace: its count moves with it.

local worker, beats, counted = take(), take(), tonumber(take())
-- A server without memory refuses a script at its first write, unless that one only frees memory; what follows is taken.
-- No worker has this name.
call('HDEL', P .. 'beating', '')
local before = call('HGET', P .. 'beating', worker)
if before and before ~= beats then
  local count = call('HGET', P .. before, worker)
  call('HSET', P .. beats, worker, count or 0)
  call('HDEL', P .. before, worker)
end
call('HSET', P .. 'beating', worker, beats)
local count = tonumber(call('HGET', P .. beats, worker) or 0)
call('HSET', P .. beats, worker, math.max(count, counted))
return count
