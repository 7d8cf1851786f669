-- What the answers of OpenAI's API hold; of Triton's own API the access log has the status alone.
-- Servers report failures inside a stream under status 200; the access log must still see them.
-- And what users got: tokens (of all chunks), the last finish reason, whether there was any text. A field may be split
-- over chunks, so the end of what was searched is kept, but no more of it than a field is long. Answers that broke off
-- leave nothing: their flags tell.

local FILTER = "envoy.filters.http.lua"
local KEPT = 255

local function put(handle, key, value)
  handle:streamInfo():dynamicMetadata():set(FILTER, key, value)
end

local function each(tails, pattern, text, found)
  local joined, from = (tails[pattern] or "\n") .. text, 1
  while true do
    local first, last, value = string.find(joined, pattern, from)
    if not first then break end
    found(value)
    from = last + 1
  end
  tails[pattern] = string.sub(joined, math.max(from, #joined - KEPT + 1))
end

-- The newest part of an answer's text, as it stands in JSON, and its repetition: the share of its pieces of six bytes
-- that were there before. A text shorter than SHORTEST says nothing.
local TEXT, SHORTEST, PIECE = 512, 64, 6

local function keep(text, piece)
  if piece == "" then return end
  text.parts[#text.parts + 1] = piece
  text.size = text.size + #piece
  if text.size > 16 * TEXT then
    text.parts = { string.sub(table.concat(text.parts), -TEXT) }
    text.size = TEXT
  end
end

local function read_text(text, chunk)
  local joined, at = text.tail .. chunk, 1
  text.tail = ""
  while at <= #joined do
    if not text.inside then
      local _, last = string.find(joined, text.key, at)
      if not last then
        text.tail = string.sub(joined, math.max(at, #joined - KEPT + 1))
        return
      end
      text.inside, at = true, last + 1
    else
      local from = text.escaped and at + 1 or at
      text.escaped = false
      local stop = string.find(joined, "[\"\\]", from)
      while stop and string.byte(joined, stop) == 92 do
        text.escaped = stop == #joined
        stop = string.find(joined, "[\"\\]", stop + 2)
      end
      keep(text, string.sub(joined, at, stop and stop - 1))
      text.inside, at = not stop, stop and stop + 1 or #joined + 1
    end
  end
end

local function describe(handle, text)
  local newest = string.sub(table.concat(text.parts), -TEXT)
  if #newest < SHORTEST then return end
  local seen, distinct, pieces = {}, 0, #newest - PIECE + 1
  for at = 1, pieces do
    local piece = string.sub(newest, at, at + PIECE - 1)
    if not seen[piece] then seen[piece], distinct = true, distinct + 1 end
  end
  put(handle, "repetition", 1 - distinct / pieces)
end

local function tell(handle, answer)
  put(handle, "has_text", answer.size > 0 and "1" or "0")
  describe(handle, answer)
  -- LiteLLM counts 0 in every chunk for users who do not ask it to count
  if answer.tokens and (answer.tokens > 0 or answer.size == 0) then put(handle, "output_tokens", answer.tokens) end
  if answer.reason then put(handle, "finish_reason", string.sub(answer.reason, 1, 32)) end
end

-- What answers are made of, by the end of the path. A prompt cannot look like a field: its quotation marks are escaped.
-- A stream says its tokens once, or all so far again and again, and has an end mark.
local OPENAI = { ["completions"] = "\"text\": *\"", ["chat/completions"] = "\"content\": *\"" }
local STREAM = "\"stream\"%s*:%s*true"

function envoy_on_request(handle)
  local levels = handle:metadata():get("json_levels")
  if levels and is_deeper(handle:body(), levels) then
    local text = string.format("{\"error\":\"the request is JSON of more than %d levels\"}", levels)
    handle:respond({ [":status"] = "400", ["content-type"] = "application/json" }, text)
    return
  end
  local api = string.match(handle:headers():get(":path"), "^/v1/([%a/]*completions)")
  if not api then return end
  put(handle, "api", api)
  local tails = {}
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then each(tails, STREAM, chunk:getBytes(0, length), function() put(handle, "stream", "1") end) end
  end
end

function envoy_on_response(handle)
  if handle:headers():get(":status") == "500" then
    if is_users_mistake(handle:body()) then handle:headers():replace(":status", "400") end
    return
  end
  local known = handle:streamInfo():dynamicMetadata():get(FILTER)
  local key = OPENAI[known and known["api"]]
  if not key then return end
  local kind, tails = handle:headers():get("content-type") or "", {}
  local said = { parts = {}, size = 0, tail = "", inside = false, escaped = false, key = key }
  local function failed() put(handle, "error", "1") end
  local function counted(number) said.tokens = tonumber(number) end
  local function ended(word) said.reason = word end
  local function done() said.done = true end
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      local text = chunk:getBytes(0, length)
      each(tails, "\ndata: *{ *\"error\"", text, failed)
      if not tails.begun then
        tails.begun = true
        if string.find(text, "^%s*{ *\"error\"") then failed() end
        if string.find(text, "^%s*{ *\"object\": *\"error\"") then failed() end
      end
      each(tails, "\ndata: *{ *\"object\": *\"error\"", text, failed)
      each(tails, "\"completion_tokens\": *(%d+)%s*[,}]", text, counted)
      each(tails, "\ndata: *%[DONE%]", text, done)
      each(tails, "\"finish_reason\": *\"([%w_]+)\"", text, ended)
      read_text(said, text)
    end
  end
  if string.find(kind, "^text/event%-stream") and not said.done then said.reason = nil end
  tell(handle, said)
end
