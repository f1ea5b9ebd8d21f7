-- Choose among what waits: higher priorities first, owners by turns, within a share. Gives id, owner, namespace and state
-- of each. What an owner has beyond its turn, and what is of a tool without room, is not looked at.

local namespace, limit, mark = take(), tonumber(take()), take() == '1'
local share, any_queue, wanted = take_share(), take() == '1', {}
for _, queue in ipairs(take_list()) do
  wanted[queue] = true
end
-- What cannot be read, as only those who ask can tell.
local unreadable = {}
for _, id in ipairs(take_list()) do
  unreadable[id] = true
end

local turns = P .. 'turns:' .. namespace

-- By bytes, as the indexes are ordered: Lua compares strings by the rules of a language.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

-- Priorities, the highest first, and the queues that have something of each.
local function ranks()
  local queues, order = {}, {}
  for _, name in ipairs(call('HKEYS', P .. 'ranks:' .. namespace)) do
    local rank, queue = string.match(name, '^(-?%d+):(.*)$')
    if any_queue or wanted[queue] then
      if not queues[rank] then
        queues[rank] = {}
        order[#order + 1] = rank
      end
      table.insert(queues[rank], queue)
    end
  end
  table.sort(order, function(one, other) return tonumber(one) > tonumber(other) end)
  return order, queues
end

local rooms = { owner = {}, route = {}, tool = {} }

local function has_owner_room(owner)
  if not rooms.owner[owner] then
    rooms.owner[owner] = owner_room(share, namespace, owner)
  end
  return rooms.owner[owner] > 0
end

-- Lanes of different priorities have one route.
local function has_route_room(owner, lane)
  if not rooms.route[lane.route] then
    local left = route_room(share, namespace, lane.queue, owner, lane.tool)
    rooms.route[lane.route] = math.min(left, rooms.owner[owner])
  end
  return rooms.route[lane.route] > 0
end

local function has_tool_room(tool)
  if rooms.tool[tool] == nil then
    rooms.tool[tool] = tool_room(share, namespace, tool) or false
  end
  return not rooms.tool[tool] or rooms.tool[tool] > 0
end

-- The owner who comes behind another, over some queues.
local function owner_behind(queues, rank, first)
  local found
  for _, queue in ipairs(queues) do
    local owner = call('ZRANGEBYLEX', P .. owners_of(namespace, queue, rank), first, '+', 'LIMIT', 0, 1)[1]
    if owner and (not found or is_before(owner, found)) then
      found = owner
    end
  end
  return found
end

local function lanes_of(queues, rank, owner)
  local lanes = {}
  for _, queue in ipairs(queues) do
    for _, tool in ipairs(call('ZRANGE', P .. tools_of(namespace, queue, rank, owner), 0, -1)) do
      local key, route = P .. lane_of(namespace, queue, rank, owner, tool), handed_of(namespace, queue, owner, tool)
      lanes[#lanes + 1] = { key = key, route = route, queue = queue, tool = tool, first = '-' }
    end
  end
  return lanes
end

local function head_of(lane)
  if not lane.head then
    lane.head = call('ZRANGEBYLEX', lane.key, lane.first, '+', 'LIMIT', 0, 1)[1]
  end
  return lane.head
end

local chosen, rows = {}, {}

-- Choose the next task of an owner, if there is one within the share.
local function take_from(owner, lanes)
  while has_owner_room(owner) do
    local best
    for _, lane in ipairs(lanes) do
      local is_open = has_tool_room(lane.tool) and has_route_room(owner, lane) and head_of(lane)
      if is_open and (not best or is_before(lane.head, best.head)) then
        best = lane
      end
    end
    if not best then
      return false
    end
    local id = string.sub(best.head, 9)
    best.first, best.head = '(' .. best.head, nil
    local row = call('HMGET', P .. 't:' .. id, 'o', 'n', 's')
    if row[2] and not unreadable[id] then
      chosen[#chosen + 1] = id
      rows[#rows + 1] = { id, row[1], row[2], row[3] }
      rooms.route[best.route] = rooms.route[best.route] - 1
      if rooms.tool[best.tool] then
        rooms.tool[best.tool] = rooms.tool[best.tool] - 1
      end
      return true
    end
  end
  return false
end

-- Choose among the tasks of one priority; gives the owner who was last.
local function choose_at(rank, queues)
  local last = call('HGET', turns, rank)
  local ring, served = {}, nil

  local function serve(owner, lanes)
    if take_from(owner, lanes) then
      served = owner
      return true
    end
    return false
  end

  local first, wrapped = last and '(' .. last or '-', not last
  while #chosen < limit do
    local owner = owner_behind(queues, rank, first)
    if not owner and not wrapped then
      wrapped, first = true, '-'
    elseif not owner or (wrapped and last and is_before(last, owner)) then
      break
    else
      local lanes = lanes_of(queues, rank, owner)
      if serve(owner, lanes) then
        ring[#ring + 1] = { owner, lanes }
      end
      first = '(' .. owner
    end
  end
  while #ring > 0 and #chosen < limit do
    local left = {}
    for _, each in ipairs(ring) do
      if #chosen >= limit then
        break
      end
      if serve(each[1], each[2]) then
        left[#left + 1] = each
      end
    end
    ring = left
  end
  return served
end

local order, queues = ranks()
for _, rank in ipairs(order) do
  if #chosen >= limit then
    break
  end
  local served = choose_at(rank, queues[rank])
  if served then
    call('HSET', turns, rank, served)
  end
end
if mark then
  for _, id in ipairs(chosen) do
    local indexed = unpacked(call('HGET', P .. 't:' .. id, 'ix'))
    call('HSET', P .. 't:' .. id, 'h', '1')
    reindex(id, indexed, false, indexed, true)
  end
end
return rows
