#include <atomic>
#include <caf/all.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "bench/exec/bare_caf.h"

using SharedBytes = std::shared_ptr<const std::vector<char>>;
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(SharedBytes)

namespace primerl {
namespace {

using Clock = std::chrono::steady_clock;
using CreditAtom = caf::atom_constant<caf::atom("credit")>;
using GoAtom = caf::atom_constant<caf::atom("go")>;
using AskAtom = caf::atom_constant<caf::atom("ask")>;

struct Pool {
  explicit Pool(int64_t threads) {
    config.set("scheduler.policy", caf::atom("sharing"));
    config.set("scheduler.max-threads", static_cast<size_t>(threads));
    system = std::make_unique<caf::actor_system>(config);
  }
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

double bare_pair_seconds(int64_t count, int64_t window, int64_t pool_threads) {
  Pool pool(pool_threads);
  std::promise<void> done;
  caf::actor sink = pool.system->spawn([&, window](caf::event_based_actor* self) -> caf::behavior {
    return {[&done, self, window, count, got = int64_t{0}](uint64_t) mutable {
      ++got;
      if (got % (window / 2) == 0)
        self->send(caf::actor_cast<caf::actor>(self->current_sender()), CreditAtom::value,
                   window / 2);
      if (got == count) {
        done.set_value();
        self->quit();
      }
    }};
  });
  caf::actor source = pool.system->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    auto sent = std::make_shared<int64_t>(0);
    const auto send = [self, sent, sink, count](int64_t credit) {
      for (; credit > 0 && *sent < count; --credit)
        self->send(sink, static_cast<uint64_t>(++*sent));
      if (*sent == count) self->quit();
    };
    return {[send](CreditAtom, int64_t credit) { send(credit); }};
  });
  const auto begin = Clock::now();
  caf::anon_send(source, CreditAtom::value, window);
  done.get_future().wait();
  return seconds_since(begin);
}

double bare_request_seconds(int64_t count, int64_t pool_threads) {
  Pool pool(pool_threads);
  std::promise<void> done;
  caf::actor answerer = pool.system->spawn([](caf::event_based_actor*) -> caf::behavior {
    return {[](AskAtom, uint64_t value) { return value; }};
  });
  caf::actor asker = pool.system->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    return {[&done, self, answerer, left = count](GoAtom) mutable {
      self->request(answerer, caf::infinite, AskAtom::value, uint64_t{1})
          .then([&done, self, &left](uint64_t) {
            if (--left > 0) return self->send(self, GoAtom::value);
            done.set_value();
          });
    }};
  });
  const auto begin = Clock::now();
  caf::anon_send(asker, GoAtom::value);
  done.get_future().wait();
  const double seconds = seconds_since(begin);
  caf::anon_send_exit(asker, caf::exit_reason::user_shutdown);
  caf::anon_send_exit(answerer, caf::exit_reason::user_shutdown);
  return seconds;
}

double bare_broadcast_seconds(int64_t count, int64_t num_actors, int64_t num_bytes,
                              int64_t pool_threads) {
  Pool pool(pool_threads);
  std::promise<void> done;
  std::atomic<int64_t> num_got{0};
  std::vector<caf::actor> sinks;
  const auto message = caf::make_message(
      SharedBytes(std::make_shared<const std::vector<char>>(static_cast<size_t>(num_bytes))));
  caf::actor source;
  for (int64_t i = 0; i < num_actors; ++i)
    sinks.push_back(pool.system->spawn([&](caf::event_based_actor*) -> caf::behavior {
      return {[&](const SharedBytes&) {
        if (++num_got % num_actors == 0) caf::anon_send(source, GoAtom::value);
      }};
    }));
  source = pool.system->spawn([&](caf::event_based_actor* self) -> caf::behavior {
    return {[&, self, left = count](GoAtom) mutable {
      if (left-- == 0) return done.set_value();
      for (const auto& sink : sinks) self->send(sink, message);
    }};
  });
  const auto begin = Clock::now();
  caf::anon_send(source, GoAtom::value);
  done.get_future().wait();
  const double seconds = seconds_since(begin);
  for (const auto& sink : sinks) caf::anon_send_exit(sink, caf::exit_reason::user_shutdown);
  caf::anon_send_exit(source, caf::exit_reason::user_shutdown);
  source = nullptr;
  return seconds;
}

}  // namespace primerl
