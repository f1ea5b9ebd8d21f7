-- How many tasks are in some indexes together, and how many bytes are kept of one owner, if any is named.

local sized, count = optional(take()), 0
for _, index in ipairs(take_list()) do
  count = count + call('ZCARD', P .. index)
end
return { count, sized and call('HGET', P .. 'stored', sized) or '0' }
