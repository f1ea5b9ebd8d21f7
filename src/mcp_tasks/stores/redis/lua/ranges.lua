-- The members of one index or several, each between two bounds, all of one moment.

local limit = tonumber(take())
local ranges = take_list()

local found = {}
for i = 1, #ranges, 3 do
  found[#found + 1] = call('ZRANGEBYLEX', P .. ranges[i], ranges[i + 1], ranges[i + 2], 'LIMIT', 0, limit)
end
return found
