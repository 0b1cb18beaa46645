#include "runtime/backends/outside_backend.h"

#include <utility>
#include <vector>

#include "runtime/outside/http_listener.h"
#include "runtime/outside/outside_pools.h"
#include "runtime/outside/outside_workers.h"
#include "runtime/outside/verifiers/verifiers_servers.h"

namespace primerl {

std::shared_ptr<Outside> make_outside(const OutsideSpec& spec,
                                      const std::function<void(std::string_view)>& log) {
  std::shared_ptr<Outside> workers, servers;
  std::vector<std::shared_ptr<Outside>> of_pool;
  for (const OutsidePool& pool : spec.pools) {
    const bool is_workers = pool.kind == OutsidePoolKind::kWorkers;
    if (is_workers && workers == nullptr) workers = make_outside_workers({spec, log});
    if (!is_workers && servers == nullptr) servers = make_verifiers_servers({spec, log});
    of_pool.push_back(is_workers ? workers : servers);
  }
  if (servers == nullptr) return workers != nullptr ? workers : make_outside_workers({spec, log});
  if (workers == nullptr) return servers;
  return make_outside_pools(std::move(of_pool));
}

ResourceContract http_listener_contract() {
  using H = HttpListenerOptions;
  ResourceContract contract;
  contract.kind = "outside";
  contract.backend = "http";
  contract.doc = "listens for HTTP requests of clients, which a gateway or a tinker node answers";
  contract.options =
      OptionsOf<H>()
          .field("listen", &H::listen, any(),
                 "address and port; port 0: any free one. One beyond loopback needs 'keys_file'")
          .field("keys_file", &H::keys_file, refers_to("file"),
                 "one key per line, KEY or KEY TENANT; clients send it as Bearer or X-API-Key")
          .field("key_prefix", &H::key_prefix, any(), "how each key begins: \"tml-\" for Tinker")
          .field("tls_cert", &H::tls_cert, refers_to("file"), "PEM file of the certificate: https")
          .field("tls_key", &H::tls_key, refers_to("file"), "PEM file of the certificate's key")
          .field("tenant_tokens", &H::tenant_tokens, any(),
                 "in a run of `serve` every request needs a key, and the token of a tenant that "
                 "begins with key_prefix is one")
          .field("url", &H::url, any(),
                 "by which servers of environments reach it, http://host:port; empty: 'listen'")
          .field("connections_max", &H::connections_max, between(1, 65536) | unit("connections"),
                 "open at once; one more closes the one that has waited longest for its client")
          .field("requests_max", &H::requests_max, between(1, 32768) | unit("requests"),
                 "that wait for a reply; a further one gets the status 429")
          .field("header_bytes_max", &H::header_bytes_max, between(256, 1 << 20) | unit("bytes"),
                 "of the headers of a request; more get the status 431")
          .field("body_bytes_max", &H::body_bytes_max, between(1, int64_t{1} << 30) | unit("bytes"),
                 "of the body of a request; more get the status 413")
          .field("bytes_max", &H::bytes_max, between(1, int64_t{1} << 36) | unit("bytes"),
                 "of all bodies that arrive and replies that leave; more get the status 429")
          .field("idle_timeout", &H::idle_timeout, above(0),
                 "how long a connection without a request stays open")
          .field("receive_timeout", &H::receive_timeout, above(0),
                 "time in which a request must arrive")
          .field("send_timeout", &H::send_timeout, above(0), "time for a client to read its reply")
          .take();
  contract.validate = [](const void* bound) { return validate(*static_cast<const H*>(bound)); };
  return contract;
}

}  // namespace primerl
