-- Servers report some failures, and all of those inside a stream, under status 200; the access log must still see them.
-- And what users got: tokens (of all chunks), the last finish reason, whether there was any text. A field may be split
-- over chunks, so the end of what was searched is kept, but no more of it than a field is long. Of a session's name and
-- a client's address only fingerprints leave this filter; they are no cryptographic ones, so names should be long random
-- ones. The address is the connection's own, unless a proxy that is trusted names another: anybody else can make one up.
-- Answers that broke off leave nothing: their flags tell.

local FILTER = "envoy.filters.http.lua"
local KEPT = 255

local function fingerprint(value)
  local one, other = 7, 11
  for at = 1, math.min(#value, 256) do
    local byte = string.byte(value, at)
    one = (one * 131 + byte) % 2147483647
    other = (other * 257 + byte) % 2147483629
  end
  return string.format("%08x%08x", one, other)
end

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

-- The newest part of an answer's text, as it stands in JSON, and what is cheap to say of it: repetition (the share of
-- its pieces of six bytes that were there before) and odd characters (the share that are neither letters nor spaces).
-- A text shorter than SHORTEST says nothing.
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

local ESCAPES = { ["\""] = "\\\"", ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function describe(handle, text)
  local newest = string.sub(table.concat(text.parts), -TEXT)
  if text.plain then newest = string.sub(string.gsub(newest, "[\"\\\n\r\t]", ESCAPES), -TEXT) end
  if #newest < SHORTEST then return end
  local seen, distinct, pieces = {}, 0, #newest - PIECE + 1
  for at = 1, pieces do
    local piece = string.sub(newest, at, at + PIECE - 1)
    if not seen[piece] then seen[piece], distinct = true, distinct + 1 end
  end
  local _, plain = string.gsub(newest, "[%a%s]", "")
  put(handle, "repetition", 1 - distinct / pieces)
  put(handle, "odd_characters", 1 - plain / #newest)
end

local function tell(handle, answer)
  put(handle, "has_text", answer.size > 0 and "1" or "0")
  describe(handle, answer)
  -- LiteLLM counts 0 in every chunk for users who do not ask it to count
  if answer.tokens and (answer.tokens > 0 or answer.size == 0) then put(handle, "output_tokens", answer.tokens) end
  if answer.reason then put(handle, "finish_reason", string.sub(answer.reason, 1, 32)) end
end

-- gRPC messages come as frames: a flag (compressed or not), four bytes of length, the message; cut anywhere. In
-- ModelStreamInferResponse field number 1 is the error's text, and a stream of status 0 may be made of nothing else;
-- number 2 is the response. Outputs have the names that they have over HTTP.
local HEAD, ERROR_TAG, RESPONSE = 5, 10, 2

local function read_response(answer, bytes, first, last)
  local whole = outputs_of(bytes, first, last, function(name, raw, contents)
    if name == "text_output" then
      local text = text_of(bytes, raw, contents)
      answer.read = answer.read or text ~= nil
      keep(answer, text or "")
    elseif name == "output_tokens" then
      local tokens = number_of(bytes, raw, contents)
      answer.tokens = tokens and (answer.tokens or 0) + tokens or answer.tokens
    elseif name == "finish_reason" then
      answer.reason = text_of(bytes, raw, contents) or answer.reason
    end
  end)
  answer.unread = answer.unread or not whole
end

local function read_message(handle, answer, bytes, stream)
  if not stream then return read_response(answer, bytes, 1, #bytes) end
  local tag, first = string.byte(bytes, 1, 2)
  if tag == ERROR_TAG and first and first > 0 then put(handle, "error", "1") end
  local whole = fields(bytes, 1, #bytes, function(number, from, to)
    if number == RESPONSE then read_response(answer, bytes, from, to) end
  end)
  answer.unread = answer.unread or not whole
end

local function read_messages(handle, stream)
  local answer, head, left, parts, size = { parts = {}, size = 0, plain = true }, "", 0, {}, 0
  for chunk in handle:bodyChunks() do
    local at, length = 0, chunk:length()
    while at < length do
      if #head < HEAD then
        local taken = math.min(HEAD - #head, length - at)
        head, at = head .. chunk:getBytes(at, taken), at + taken
        if #head == HEAD then
          local _, a, b, c, d = string.byte(head, 1, HEAD)
          left, parts, size = ((a * 256 + b) * 256 + c) * 256 + d, {}, 0
        end
      else
        local step = math.min(left, length - at)
        local taken = math.min(step, LARGEST_MESSAGE - size)
        if taken > 0 then parts[#parts + 1] = chunk:getBytes(at, taken) end
        at, left, size = at + step, left - step, size + taken
        if step > taken then answer.unread = true end
      end
      if #head == HEAD and left == 0 then
        if string.byte(head, 1) ~= 0 then
          answer.unread = true
        else
          read_message(handle, answer, table.concat(parts), stream)
        end
        head = ""
      end
    end
  end
  if answer.unread or not answer.read then return end
  tell(handle, answer)
end

-- What answers are made of, by the end of the path in OpenAI's API. A prompt cannot look like a field: its quotation
-- marks are escaped. There a stream says its tokens once, or all so far again and again, and has an end mark.
local TRITON = "\"text_output\": *\""
local OPENAI = { ["completions"] = "\"text\": *\"", ["chat/completions"] = "\"content\": *\"" }
local STREAM = "\"stream\"%s*:%s*true"

function envoy_on_request(handle)
  local levels = handle:metadata():get("json_levels")
  if levels and is_deeper(handle:body(), levels) then
    local text = string.format("{\"error\":\"the request is JSON of more than %d levels\"}", levels)
    handle:respond({ [":status"] = "400", ["content-type"] = "application/json" }, text)
    return
  end
  local header = handle:metadata():get("session_header")
  local value = header and handle:headers():get(header)
  if value then put(handle, "session", fingerprint(value)) end
  -- Behind proxies that are trusted, this is the user's address and not the proxy's; older Envoys know the latter only.
  local stream = handle:streamInfo()
  local address = (stream.downstreamRemoteAddress or stream.downstreamDirectRemoteAddress)(stream)
  put(handle, "client", fingerprint((string.gsub(address, ":%d+$", ""))))
  local method = string.match(handle:headers():get(":path"), "/(Model%a*Infer)$")
  if method then put(handle, "method", method) end
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
  local kind = handle:headers():get("content-type") or ""
  local known = handle:streamInfo():dynamicMetadata():get(FILTER)
  if string.find(kind, "^application/grpc") then
    if known and known["method"] then read_messages(handle, known["method"] == "ModelStreamInfer") end
    return
  end
  local tails = {}
  local openai = known and known["api"]
  local key = OPENAI[openai] or TRITON
  local said = { parts = {}, size = 0, tail = "", inside = false, escaped = false, key = key }
  local function failed() put(handle, "error", "1") end
  local function count(number) said.tokens = (said.tokens or 0) + tonumber(number) end
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
        if openai and string.find(text, "^%s*{ *\"object\": *\"error\"") then failed() end
      end
      if openai then
        each(tails, "\ndata: *{ *\"object\": *\"error\"", text, failed)
        each(tails, "\"completion_tokens\": *(%d+)%s*[,}]", text, counted)
        each(tails, "\ndata: *%[DONE%]", text, done)
      else
        each(tails, "\"output_tokens\": *(%d+)%s*[,}]", text, count)
      end
      each(tails, "\"finish_reason\": *\"([%w_]+)\"", text, ended)
      read_text(said, text)
    end
  end
  if openai and string.find(kind, "^text/event%-stream") and not said.done then said.reason = nil end
  tell(handle, said)
end
