/// Outside: asks something outside the process (Python workers, verifiers servers) and receives its
/// answers later.
///
/// A resource of one actor group (docs/design/outside.md). ask() puts a call into a queue; a thread
/// of the resource sends it. When answers have arrived, wake() is called and the group gets a work
/// call, also while a forward output of its actors is full. Every call gets exactly one answer.
/// The record keeps the answers as notes; a replay gives them and asks nothing.
///
/// Threads: the methods on the group's thread. The wake function is called on any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/resource.h"

namespace primerl {

inline constexpr size_t kOutsideCallsMax = 65536;        // without an answer, of one resource
inline constexpr size_t kOutsideAnswersMax = 64;         // of one receive_answers()
inline constexpr uint32_t kOutsideAttemptsMax = 3;       // of one call, in one start of the run
inline constexpr int64_t kOutsideWorkersMax = 256;       // of one pool to ask
inline constexpr int64_t kOutsideConcurrencyMax = 4096;  // calls at once in one worker

struct OutsideCall {
  uint64_t id = 0;         // chosen by the caller, unique
  uint32_t attempt = 0;    // rises each time that it is asked again
  uint32_t pool = 0;       // index into OutsideSpec::pools
  uint64_t session = 0;    // calls of one session go to the worker that has its state; 0 = none
  bool is_whole = true;    // it has everything that a fresh worker needs
  bool is_replay = false;  // it plays earlier turns again
  std::string body;        // a JSON object, without id and attempt

  template <class F>
  static void fields(F& f) {
    using C = OutsideCall;
    f("id", &C::id)("attempt", &C::attempt)("pool", &C::pool)("session", &C::session)(
        "is_whole", &C::is_whole)("is_replay", &C::is_replay)("body", &C::body);
  }
};

/// kUnusable: its pool cannot be used any more, so its tenant fails.
enum class OutsideEnd : uint8_t { kDone, kFailed, kLost, kNeedsHistory, kUnusable };

struct OutsideAnswer {
  uint64_t id = 0;
  OutsideEnd end = OutsideEnd::kDone;
  std::string body;  // for kDone a JSON object, else the reason

  template <class F>
  static void fields(F& f) {
    f("id", &OutsideAnswer::id)("end", &OutsideAnswer::end)("body", &OutsideAnswer::body);
  }
};

/// The kind of process that answers the calls of a pool.
enum class OutsidePoolKind : uint8_t {
  kWorkers,    // processes that speak docs/formats/outside.md
  kVerifiers,  // verifiers servers: they drive whole rollouts (docs/design/verifiers.md)
};

/// Servers of a pool of kind kVerifiers.
struct VerifiersPool {
  std::string address;            // of servers that run already; empty: started here
  std::string protocol = "auto";  // the dialect: auto, w0, w1a, w1b, w1c or w2
  int64_t concurrency = 256;      // runs at once in one server; more wait
  Duration health_timeout = Duration::seconds(30);
  std::string client = "train";  // or "eval": chat, answers without token ids
  std::string renderer;          // JSON object for the server's client; empty: none
  std::string renderer_model;    // the name that its renderer knows; empty: none
  std::string api_key_var;       // the variable with the key for the gateway, in the server
};

/// One pool to ask: workers that run one command, or servers.
struct OutsidePool {
  OutsidePoolKind kind = OutsidePoolKind::kWorkers;
  std::string name;  // for messages: "environment", "reward 'python'"
  std::vector<std::string> command;
  std::vector<std::string> files;  // that it reads, for notes
  int64_t num_workers = 1;
  Duration start_timeout = Duration::seconds(60);
  Duration call_timeout = Duration::seconds(30);
  int64_t answer_bytes_max = int64_t{16} << 20;
  Duration run_timeout = Duration::seconds(3600);  // of one `run`; call_timeout is of other calls
  VerifiersPool verifiers;                         // for kVerifiers
};

/// All pools that the actors of one group ask.
struct OutsideSpec {
  std::vector<OutsidePool> pools;
};

class Outside : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "outside";

  /// kExhausted: kOutsideCallsMax calls have no answer yet.
  virtual Status ask(OutsideCall call) = 0;
  /// The session has ended. A call of it that has no answer yet still gets one.
  virtual void forget(uint32_t pool, uint64_t session) = 0;
  /// At most kOutsideAnswersMax answers, in the order in which they arrived. has_work() says
  /// whether there are more.
  virtual std::vector<OutsideAnswer> receive_answers() = 0;
  /// The run ends: forgets all calls and answers. Later calls get no answer, and has_work() is
  /// false.
  virtual void stop() = 0;
  /// `wake` is called when answers have arrived after there were none.
  virtual void set_wake(std::function<void()> wake) = 0;
  /// For the Outside of a slot in a graph with limits: a tenant has joined it, and from now on
  /// calls are for its pools. Calls of the tenant before are forgotten.
  virtual void begin_tenant(OutsideSpec) {}
  /// The tenant has left the slot: its processes end, and its calls are forgotten.
  virtual void end_tenant() {}
};

}  // namespace primerl
