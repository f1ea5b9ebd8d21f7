-- How many tasks are in some indexes together, and how many bytes are kept beside those of one index of sizes, if any.

local SLICE = 1000
local size_index, indexes = optional(take()), take_list()

local count = 0
for _, index in ipairs(indexes) do
  count = count + call('ZCARD', P .. index)
end
if not size_index then
  return { count, '0' }
end

-- A release that does not count has taken some out of the index, so that the rest are counted again. There is none once
-- all processes are of one release.
local tasks = call('ZCARD', P .. size_index)
if tasks ~= tonumber(call('HGET', P .. 'counted', size_index) or 0) then
  local size = 0
  for first = 0, tasks - 1, SLICE do
    for _, member in ipairs(call('ZRANGE', P .. size_index, first, first + SLICE - 1)) do
      size = size + size_of(member)
    end
  end
  call('HDEL', P .. 'stored', size_index)
  call('HDEL', P .. 'counted', size_index)
  tally('stored', size_index, string.format('%.0f', size))
  tally('counted', size_index, tasks)
end
return { count, call('HGET', P .. 'stored', size_index) or '0' }
