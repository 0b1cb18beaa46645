/// One input of the HTTP fuzzer: the bytes of a client. They are read at once and in small pieces,
/// which must give the same request. tests/outside/http_fuzz_test.cc runs it over the corpus.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "graph/base/assert.h"
#include "graph/http_calls.h"
#include "runtime/outside/http_reader.h"

namespace primerl {

struct FuzzedRequest {
  HttpReader::State state = HttpReader::State::kHead;
  int32_t status = 0;
  std::string path, body;
  size_t num_used = 0;
};

inline FuzzedRequest fuzz_http_in_pieces(std::string_view bytes, size_t piece) {
  HttpReaderLimits limits;
  limits.header_bytes_max = 512;
  limits.body_bytes_max = 1024;
  HttpReader reader(limits);
  FuzzedRequest request;
  size_t begin = 0, end = 0;
  while (end < bytes.size() && reader.state() < HttpReader::State::kDone) {
    end = std::min(end + piece, bytes.size());
    begin += reader.read(bytes.substr(begin, end - begin));
    CHECK(begin <= end, "more bytes were used than there are");
    if (reader.state() == HttpReader::State::kHeadDone) {
      reader.read_body();
      begin += reader.read(bytes.substr(begin, end - begin));
    }
    CHECK(reader.num_body_bytes() <= limits.body_bytes_max, "a body is beyond its limit");
  }
  request.state = reader.state();
  request.path = reader.head().path;
  request.num_used = begin;
  if (request.state == HttpReader::State::kFailed) request.status = reader.refusal().status;
  if (request.state == HttpReader::State::kDone) request.body = reader.move_body();
  return request;
}

inline FuzzedRequest fuzz_http(std::string_view bytes) {
  const FuzzedRequest whole = fuzz_http_in_pieces(bytes, std::max<size_t>(bytes.size(), 1));
  for (const size_t piece : {size_t{1}, size_t{7}}) {
    const FuzzedRequest again = fuzz_http_in_pieces(bytes, piece);
    const bool is_done = whole.state == HttpReader::State::kDone;
    CHECK((again.state == HttpReader::State::kDone) == is_done, "pieces change the request");
    if (is_done)
      CHECK(
          again.body == whole.body && again.path == whole.path && again.num_used == whole.num_used,
          "pieces change the body");
  }
  if (whole.state == HttpReader::State::kDone) {
    ClientRequest request;
    request.method = "POST";
    request.path = whole.path;
    request.body = whole.body;
    const auto read = read_client_request(write_client_request(request));
    CHECK(read.ok() && read->body == whole.body && read->path == whole.path,
          "a request did not round trip");
  }
  (void)read_client_request(bytes);
  (void)read_http_call(bytes);
  (void)read_closed(bytes);
  return whole;
}

}  // namespace primerl
