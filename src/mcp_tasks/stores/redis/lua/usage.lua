-- How many tasks are in some indexes together, and how many bytes are kept of one index of sizes, if any.

local size_index, indexes = optional(take()), take_list()

local count = 0
for _, index in ipairs(indexes) do
  count = count + call('ZCARD', P .. index)
end
return { count, size_index and call('HGET', P .. 'stored', size_index) or '0' }
