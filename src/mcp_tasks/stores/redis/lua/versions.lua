-- The version of each of these tasks, or nothing.

local found = {}
for i, id in ipairs(ARGV) do
  found[i] = call('HGET', P .. 't:' .. id, 'v')
end
return found
