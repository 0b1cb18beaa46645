#include "runtime/outside/verifiers/verifiers_servers.h"

#include <random>
#include <vector>

#include "runtime/outside/pool_queue.h"
#include "runtime/outside/verifiers/server_pool.h"
#include "runtime/outside/verifiers/zmq_client.h"

namespace primerl {
namespace {

// Servers end their children when their input is closed.
constexpr Duration kGrace = Duration::seconds(2);

/// Ids of 32 hexadecimal digits: a server's pool keeps its table by them, for all of its clients.
class RequestIds {
 public:
  RequestIds() {
    std::random_device random;
    prefix_ = (static_cast<uint64_t>(random()) << 32) | random();
  }
  std::string next() { return fmt::format("{:016x}{:016x}", prefix_, ++count_); }

 private:
  uint64_t prefix_ = 0;
  uint64_t count_ = 0;
};

class VerifiersServers final : public PoolQueue<ServerPool> {
 public:
  explicit VerifiersServers(VerifiersServersSetup setup)
      : PoolQueue(std::move(setup.spec), OutsidePoolKind::kVerifiers, std::move(setup.log)) {
    start([this] {
      const auto sockets = make_zmq_client();
      RequestIds ids;
      const ServerProbe::MakeId make_id = [&ids] { return ids.next(); };
      serve(
          kGrace, [&](std::vector<pollfd>& polls, Duration limit) { sockets->wait(polls, limit); },
          *sockets, make_id);
    });
  }
  ~VerifiersServers() override { end(); }
};

}  // namespace

std::shared_ptr<Outside> make_verifiers_servers(VerifiersServersSetup setup) {
  return std::make_shared<VerifiersServers>(std::move(setup));
}

}  // namespace primerl
