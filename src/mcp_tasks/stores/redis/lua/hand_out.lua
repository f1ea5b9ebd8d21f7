-- Choose among what waits: higher priorities first, owners by turns, within a share (the rules of `stores/fairness.py`).
-- Gives id, owner, namespace and state of each.
--
-- Waiting tasks are in one index, `line:NAMESPACE`, by queue, rank, owner, tool and creation, parted by colons. From each
-- value one can go to the next queue, rank, owner or tool, and reads nothing in between.

local namespace, limit, mark = take(), tonumber(take()), take() == '1'
local share, any_queue, queues = take_share(), take() == '1', take_list()
-- Tasks that cannot be read; only the caller can tell.
local unreadable = {}
for _, id in ipairs(take_list()) do
  unreadable[id] = true
end

local turns, index = P .. 'turns:' .. namespace, P .. 'line:' .. namespace
local TEXT, EIGHT, TWO = '^[^:]*', '^........', '^[^:]*:[^:]*'

-- The first member from a bound on, if it begins so.
local function seek(first, start)
  local member = call('ZRANGEBYLEX', index, first, '+', 'LIMIT', 0, 1)[1]
  return member and string.sub(member, 1, #start) == start and member
end

-- The values that members have behind the same beginning, from `first` on.
local function values(start, pattern, first)
  first = first or '[' .. start
  return function()
    local member = seek(first, start)
    local value = member and string.match(member, pattern, #start + 1) or nil
    first = value and '[' .. start .. value .. ';'
    return value
  end
end

-- By bytes, as the index is ordered: Lua compares strings by the rules of a language.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

local rooms = { owner = {}, route = {}, tool = {} }

local function has_room(owner, lane)
  if not rooms.tool[lane.tool] then
    rooms.tool[lane.tool] = tool_room(share, namespace, lane.tool)
  end
  -- Lanes of different ranks have one route.
  if not rooms.route[lane.route] then
    local left = route_room(share, namespace, lane.queue, owner, lane.tool)
    rooms.route[lane.route] = math.min(left, rooms.owner[owner])
  end
  return rooms.tool[lane.tool] > 0 and rooms.route[lane.route] > 0
end

-- The first owner from a bound on, over the queues that have something of the rank.
local function next_owner(rank, behind)
  local found
  for _, queue in ipairs(queues) do
    local start = queue .. ':' .. rank .. ':'
    local owner = values(start, TEXT, behind and '[' .. start .. behind .. ';')()
    if owner and (not found or is_before(owner .. ':', found .. ':')) then
      found = owner
    end
  end
  return found
end

local function lanes_of(rank, owner)
  local lanes = {}
  if not rooms.owner[owner] then
    rooms.owner[owner] = owner_room(share, namespace, owner)
  end
  for _, queue in ipairs(rooms.owner[owner] > 0 and queues or {}) do
    local start = queue .. ':' .. rank .. ':' .. owner .. ':'
    for tool in values(start, TWO) do
      local lane = { start = start .. tool .. ':', queue = queue, tool = tool }
      lane.first, lane.route = '[' .. lane.start, handed_of(namespace, queue, owner, tool)
      lanes[#lanes + 1] = lane
    end
  end
  return lanes
end

local chosen, rows = {}, {}

-- Choose the next task of an owner, if there is one within the share.
local function take_from(owner, lanes)
  while true do
    local best
    for _, lane in ipairs(lanes) do
      if has_room(owner, lane) then
        lane.member = lane.member or seek(lane.first, lane.start)
        lane.head = lane.member and string.sub(lane.member, #lane.start + 1)
        if lane.head and (not best or is_before(lane.head, best.head)) then
          best = lane
        end
      end
    end
    if not best then
      return false
    end
    local id = string.sub(best.head, 9)
    best.first, best.member = '(' .. best.member, nil
    local row = call('HMGET', P .. 't:' .. id, 'o', 'n', 's')
    if row[2] and not unreadable[id] then
      chosen[#chosen + 1] = id
      rows[#rows + 1] = { id, row[1], row[2], row[3] }
      rooms.route[best.route] = rooms.route[best.route] - 1
      rooms.tool[best.tool] = rooms.tool[best.tool] - 1
      return true
    end
  end
end

-- Choose among the tasks of one rank; gives the owner whose turn was last.
local function choose_at(rank)
  local last = call('HGET', turns, rank) or nil
  local ring, served, behind, wrapped = {}, nil, last, not last
  while #chosen < limit do
    local owner = next_owner(rank, behind)
    if not owner and not wrapped then
      wrapped, behind = true, nil
    elseif not owner or (wrapped and last and is_before(last .. ':', owner .. ':')) then
      break
    else
      local lanes = lanes_of(rank, owner)
      if take_from(owner, lanes) then
        served, ring[#ring + 1] = owner, { owner, lanes }
      end
      behind = owner
    end
  end
  while #ring > 0 and #chosen < limit do
    local left = {}
    for _, each in ipairs(ring) do
      if #chosen < limit and take_from(each[1], each[2]) then
        served, left[#left + 1] = each[1], each
      end
    end
    ring = left
  end
  return served
end

if any_queue then
  queues = {}
  for queue in values('', TEXT) do
    queues[#queues + 1] = queue
  end
end
local ranks, known = {}, {}
for _, queue in ipairs(queues) do
  for rank in values(queue .. ':', EIGHT) do
    if not known[rank] then
      known[rank], ranks[#ranks + 1] = true, rank
    end
  end
end
table.sort(ranks, is_before)
for _, rank in ipairs(ranks) do
  if #chosen >= limit then
    break
  end
  local served = choose_at(rank)
  if served then
    call('HSET', turns, rank, served)
  end
end
for _, id in ipairs(mark and chosen or {}) do
  local indexed = unpacked(call('HGET', P .. 't:' .. id, 'ix'))
  call('HSET', P .. 't:' .. id, 'h', '1')
  reindex(id, indexed, false, indexed, true)
end
return rows
