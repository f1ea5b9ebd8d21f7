-- Each write has a token, and a row keeps the last eight: a write that is sent again, because nobody knows whether it
-- arrived, finds itself.
local TOKEN, TOKENS = 8, 8

local function has_token(tokens, token)
  for i = 1, #(tokens or ''), TOKEN do
    if string.sub(tokens, i, i + TOKEN - 1) == token then
      return true
    end
  end
  return false
end

local function with_token(tokens, token)
  return string.sub((tokens or '') .. token, -TOKEN * TOKENS)
end
