-- ModelInferResponse as protobuf writes it: fields, each with a number, a kind and a value. Of every output the first
-- element is read; what has more fields or bytes than these says nothing, so a message costs a bounded amount of work.
local LARGEST_MESSAGE, MOST_FIELDS, MOST_OUTPUTS, LONGEST_NAME = 65536, 64, 16, 32

local function varint(bytes, at)
  local value, scale = 0, 1
  for _ = 1, 10 do
    local byte = string.byte(bytes, at)
    if not byte then return nil, at end
    value, scale, at = value + byte % 128 * scale, scale * 128, at + 1
    if byte < 128 then return value, at end
  end
  return nil, at
end

-- Calls found(number, first, last) for each field that has a length; whether everything was understood.
local function fields(bytes, at, last, found)
  for _ = 1, MOST_FIELDS do
    if at > last then return at == last + 1 end
    local key, size
    key, at = varint(bytes, at)
    if not key then return false end
    local kind = key % 8
    if kind == 1 then
      at = at + 8
    elseif kind == 5 then
      at = at + 4
    elseif kind == 0 or kind == 2 then
      size, at = varint(bytes, at)
      if not size then return false end
      if kind == 2 then
        if at + size - 1 > last then return false end
        found((key - kind) / 8, at, at + size - 1)
        at = at + size
      end
    else
      return false
    end
  end
  return at > last
end

local function number_at(bytes, at)
  local a, b, c, d = string.byte(bytes, at, at + 3)
  return d and a + b * 256 + c * 65536 + d * 16777216
end

-- The first element of an output: as raw bytes (a string has its length before it), or as typed contents.
local CONTENTS_INT, CONTENTS_INT64, CONTENTS_UINT, CONTENTS_BYTES = 2, 3, 4, 8

local function number_of(bytes, raw, contents)
  if raw then return raw[2] - raw[1] >= 3 and number_at(bytes, raw[1]) or nil end
  local value
  fields(bytes, contents[1], contents[2], function(number, first)
    local integers = number == CONTENTS_INT or number == CONTENTS_INT64 or number == CONTENTS_UINT
    if integers and not value then value = varint(bytes, first) end
  end)
  return value
end

local function text_of(bytes, raw, contents)
  if raw then
    local size = raw[2] - raw[1] >= 3 and number_at(bytes, raw[1])
    if not size or raw[1] + 3 + size > raw[2] then return nil end
    return string.sub(bytes, raw[1] + 4, raw[1] + 3 + size)
  end
  local value
  fields(bytes, contents[1], contents[2], function(number, first, last)
    if number == CONTENTS_BYTES and not value then value = string.sub(bytes, first, last) end
  end)
  return value
end

-- Calls found(name, raw, contents) for each output of a response; whether everything was understood.
local OUTPUTS, RAW_CONTENTS, NAME, CONTENTS = 5, 6, 1, 5

local function outputs_of(bytes, first, last, found)
  local outputs, raws = {}, {}
  local whole = fields(bytes, first, last, function(number, from, to)
    if number == OUTPUTS and #outputs < MOST_OUTPUTS then
      local output = {}
      fields(bytes, from, to, function(part, at, stop)
        if part == NAME then output.name = string.sub(bytes, at, math.min(stop, at + LONGEST_NAME - 1)) end
        if part == CONTENTS then output.contents = { at, stop } end
      end)
      outputs[#outputs + 1] = output
    elseif number == RAW_CONTENTS and #raws < MOST_OUTPUTS then
      raws[#raws + 1] = { from, to }
    end
  end)
  for index, output in ipairs(outputs) do
    if raws[index] or output.contents then found(output.name, raws[index], output.contents) end
  end
  return whole
end
