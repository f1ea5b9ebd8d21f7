-- How much may be in hand.

-- How many more there may be of what is in two indexes.
local function room(most, one, other)
  local count = call('ZCARD', P .. one)
  if other then
    count = count + call('ZCARD', P .. other)
  end
  return most - count
end

-- A share: how many of an owner, a queue and a tool may be handed out, how many of an owner may be at work ('' for any
-- number), and so many pairs of a tool and how many of it may be in hand.
local function take_share()
  local list = take_list()
  if #list == 0 then
    return nil
  end
  local share = { owner = tonumber(list[1]), at_work = tonumber(list[2]), tools = {} }
  for i = 3, #list, 2 do
    share.tools[list[i]] = tonumber(list[i + 1])
  end
  return share
end

-- Of what is at work only, wherever the rest is: what nobody serves keeps nothing else back.
local function owner_room(share, namespace, owner)
  return share.at_work and room(share.at_work, owner_at_work(namespace, owner)) or math.huge
end

local function route_room(share, namespace, queue, owner, tool)
  return room(share.owner, handed_of(namespace, queue, owner, tool))
end

-- Nothing for any number.
local function tool_room(share, namespace, tool)
  local most = share.tools[tool]
  return most and room(most, tool_handed(namespace, tool), tool_at_work(namespace, tool))
end
