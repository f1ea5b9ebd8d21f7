-- A process that opened the store while it was plain must not go on to write what can be read, once it is encrypted. What
-- is encrypted begins with a zero; the note is written by Python.

local function is_sealed_against(value)
  return string.byte(value, 1) ~= 0 and call('EXISTS', P .. 'note::mcp-tasks/encryption') == 1
end

local SEALED = { err = 'SEALED the store is encrypted' }
