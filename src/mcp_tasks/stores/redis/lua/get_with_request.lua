-- A task, and its request if that is not larger than so many bytes.

local task, largest = P .. 't:' .. take(), tonumber(take())
local found = call('HMGET', task, 'v', 'o', 'n', 's')
if call('HSTRLEN', task, 'r') <= largest then
  found[5] = call('HGET', task, 'r')
else
  found[5] = false
end
return found
