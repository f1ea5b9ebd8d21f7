-- How much may be in hand.

-- How many more there may be of what is in two indexes.
local function room(most, one, other)
  local count = call('ZCARD', P .. one)
  if other then
    count = count + call('ZCARD', P .. other)
  end
  return most - count
end

-- A share: how many of an owner may be handed out, how many of an owner may be in hand ('' for any number), and so many
-- pairs of a tool and how many of it may be in hand.
local function take_share()
  local list = take_list()
  if #list == 0 then
    return nil
  end
  local share = { owner = tonumber(list[1]), in_hand = tonumber(list[2]), tools = {} }
  for i = 3, #list, 2 do
    share.tools[list[i]] = tonumber(list[i + 1])
  end
  return share
end

local function owner_room(share, namespace, owner)
  local handed = owner_handed(namespace, owner)
  local left = room(share.owner, handed)
  if share.in_hand then
    left = math.min(left, room(share.in_hand, handed, owner_at_work(namespace, owner)))
  end
  return left
end

-- Nothing for any number.
local function tool_room(share, namespace, tool)
  local most = share.tools[tool]
  return most and room(most, tool_handed(namespace, tool), tool_at_work(namespace, tool))
end
