-- The owner of a task, and its journal beyond a number of entries.

local id, after = take(), tonumber(take())
local found = call('HMGET', P .. 't:' .. id, 'v', 'o')
if not found[1] then
  return { false, {} }
end
return { found[2], call('LRANGE', P .. 'j:' .. id, 3 * after, -1) }
