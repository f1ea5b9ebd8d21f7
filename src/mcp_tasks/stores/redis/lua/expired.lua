-- Id and version of tasks that have expired before a place. Those that the server removed by itself leave the indexes.

local before, limit, looks = take(), tonumber(take()), tonumber(take())

local found, first = {}, '-'
for _ = 1, looks do
  local member = call('ZRANGEBYLEX', P .. 'expiring', first, '(' .. before, 'LIMIT', 0, 1)[1]
  if not member or #found == 2 * limit then
    break
  end
  local id = string.sub(member, 17)
  local version = call('HGET', P .. 't:' .. id, 'v')
  if version then
    found[#found + 1] = id
    found[#found + 1] = version
  else
    reindex(id, unpacked(call('HGET', P .. 'left', id)), false, NOWHERE, false)
    call('ZREM', P .. 'expiring', member)
    call('HDEL', P .. 'left', id)
  end
  first = '(' .. member
end
return found
