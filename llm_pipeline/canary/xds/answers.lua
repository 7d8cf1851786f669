-- Triton reports some failures, and all of those inside a stream, under status 200; the access log must still see them.
-- And what users got: tokens (of all chunks), the last finish reason, whether there was any text. A field may be split
-- over chunks, so the end of what was searched is kept, but no more of it than a field is long. Of a session's name and
-- a client's address only fingerprints leave this filter; they are no cryptographic ones, so names should be long random
-- ones. The address is the connection's own: a header that names another one can be made up. Answers that broke off
-- leave nothing: their flags tell.

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

-- gRPC messages come as frames: a flag (compressed or not), four bytes of length, the message; cut anywhere. Only the
-- first field of each message is looked at: in ModelStreamInferResponse number 1 is the error's text, and a stream of
-- status 0 may be made of nothing else.
local HEAD, FIRST_FIELD, ERROR_TAG = 5, 7, 10

local function read_stream(handle)
  local head, skip = "", 0
  for chunk in handle:bodyChunks() do
    local at, length = 0, chunk:length()
    while at < length do
      if skip > 0 then
        local step = math.min(skip, length - at)
        skip, at = skip - step, at + step
      else
        local taken = math.min(#head < HEAD and HEAD - #head or FIRST_FIELD - #head, length - at)
        head, at = head .. chunk:getBytes(at, taken), at + taken
        if #head >= HEAD then
          local compressed, a, b, c, d = string.byte(head, 1, HEAD)
          local size = ((a * 256 + b) * 256 + c) * 256 + d
          if size < 2 or compressed ~= 0 then
            head, skip = "", size
          elseif #head == FIRST_FIELD then
            local tag, first = string.byte(head, 6, 7)
            if tag == ERROR_TAG and first > 0 then put(handle, "error", "1") end
            head, skip = "", size - 2
          end
        end
      end
    end
  end
end

function envoy_on_request(handle)
  local header = handle:metadata():get("session_header")
  local value = header and handle:headers():get(header)
  if value then put(handle, "session", fingerprint(value)) end
  local address = handle:streamInfo():downstreamDirectRemoteAddress()
  put(handle, "client", fingerprint((string.gsub(address, ":%d+$", ""))))
  if string.find(handle:headers():get(":path"), "/ModelStreamInfer", 1, true) then put(handle, "stream", "1") end
end

function envoy_on_response(handle)
  local kind = handle:headers():get("content-type") or ""
  if string.find(kind, "^application/grpc") then
    local known = handle:streamInfo():dynamicMetadata():get(FILTER)
    if known and known["stream"] then read_stream(handle) end
    return
  end
  local tails, tokens, reason, has_text = {}, nil, nil, nil
  local function failed() put(handle, "error", "1") end
  local function count(number) tokens = (tokens or 0) + tonumber(number) end
  local function ended(word) reason = word end
  local function wrote() has_text = true end
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    if length > 0 then
      local text = chunk:getBytes(0, length)
      each(tails, "\ndata: *{ *\"error\"", text, failed)
      if not tails.begun then
        tails.begun = true
        if string.find(text, "^%s*{ *\"error\"") then failed() end
      end
      each(tails, "\"output_tokens\": *(%d+)%s*[,}]", text, count)
      each(tails, "\"finish_reason\": *\"([%w_]+)\"", text, ended)
      if not has_text then each(tails, "\"text_output\": *\"[^\"]", text, wrote) end
    end
  end
  put(handle, "has_text", has_text and "1" or "0")
  if tokens then put(handle, "output_tokens", tokens) end
  if reason then put(handle, "finish_reason", string.sub(reason, 1, 32)) end
end
