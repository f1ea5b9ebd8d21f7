-- The rows of a listing behind a member of its index (before it, and backwards, if the newest come first): those in one
-- status or any that have not expired. Gives the last member that was looked at, if there may be more behind it, and then
-- the rows.

local index, after, limit, now, status, looks = take(), take(), tonumber(take()), tonumber(take()), take(), tonumber(take())
local newest_first = take() == 'newest'

local first = after == '' and (newest_first and '+' or '-') or '(' .. after
local command, last_bound = 'ZRANGEBYLEX', '+'
if newest_first then
  command, last_bound = 'ZREVRANGEBYLEX', '-'
end
local rows, looked, last = {}, 0, ''
while true do
  local members = call(command, P .. index, first, last_bound, 'LIMIT', 0, limit)
  for _, member in ipairs(members) do
    local found = call('HMGET', P .. 't:' .. string.sub(member, 9), 'v', 'e', 'st', 'o', 'n', 's')
    -- One that the server removed by itself is in the index until a sweep finds it.
    if found[1] and not (found[2] and tonumber(found[2]) <= now) and (status == '' or found[3] == status) then
      rows[#rows + 1] = { member, found[4], found[5], found[6] }
    end
    looked, last = looked + 1, member
    if #rows == limit or looked == looks then
      return { last, rows }
    end
  end
  if #members < limit then
    return { '', rows }
  end
  first = '(' .. last
end
