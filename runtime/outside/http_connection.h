/// One connection of HttpConnections. Only for http_connections.cc and http_replies.cc.
#pragma once

#include <sys/epoll.h>

#include "runtime/outside/http_connections.h"

namespace primerl {

struct HttpConnections::Connection {
  Number number = 0;
  HttpSocket socket;
  Phase phase = Phase::kIdle;
  uint32_t events = EPOLLIN;  // that epoll reports
  std::optional<Time> deadline;
  std::optional<std::list<Number>::iterator> waits;  // in waits_for_client_
  std::string received;                              // bytes that the reader has not used
  std::unique_ptr<HttpReader> reader;                // while a request arrives
  std::string tenant;                                // of its key
  std::optional<uint64_t> request;                   // accepted
  bool has_begun = false;                            // its TLS handshake
  bool is_admitted = false;
  bool keeps_alive = true;
  bool is_head = false;
  bool reads_chunks = true;
  bool is_streaming = false;  // its reply has begun, and another part follows
  uint64_t num_charged = 0;
  std::string to_send;
  size_t num_sent = 0;
  size_t num_discarded = 0;
  ClientRequest arrived;
};

}  // namespace primerl
