-- Whether JSON has more lists and objects within each other than a server may see that parses it by recursion.
local STEP = 65536
local QUOTE, BACKSLASH, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = string.byte("\"\\[]{}", 1, 6)

local function is_deeper(body, levels)
  local depth, inside, escaped, length = 0, false, false, body and body:length() or 0
  for from = 0, length - 1, STEP do
    local bytes = body:getBytes(from, math.min(STEP, length - from))
    for at = 1, #bytes do
      local byte = string.byte(bytes, at)
      if inside then
        if escaped then
          escaped = false
        elseif byte == BACKSLASH then
          escaped = true
        elseif byte == QUOTE then
          inside = false
        end
      elseif byte == QUOTE then
        inside = true
      elseif byte == OPEN_LIST or byte == OPEN_OBJECT then
        depth = depth + 1
        if depth > levels then return true end
      elseif byte == CLOSE_LIST or byte == CLOSE_OBJECT then
        depth = depth - 1
      end
    end
  end
  return false
end

-- Triton calls what is no JSON, or JSON of another kind than a tensor takes, an error of its own.
local MISTAKES = { "failed to parse ", "Unable to parse ", "attempt to " }

local function is_users_mistake(body)
  local text = body and body:length() > 0 and body:getBytes(0, math.min(body:length(), 64)) or ""
  for _, mistake in ipairs(MISTAKES) do
    if string.find(text, "^{\"error\":\"" .. mistake) then return true end
  end
  return false
end
