/// The wire dialects of verifiers environment servers: requests as frames, and frames as answers.
///
///   W0   verifiers 0.1, and legacy servers up to 0.3   [id, payload]            <- [id, payload]
///   W1a  0.2       run_rollout, run_group by task_idx  [id, method, payload]    <- [id, payload]
///   W1b  0.3.0     run by task_data or task_idx        [id, method, payload]    <- [id, payload]
///   W1c  0.3.1     run by task_data, cancel            [id, method, payload]    <- [id, payload]
///   W2   0.4       as W1c; the answer is streamed      [id, method, payload] <- [id, kind,
///   payload]
///
/// An id has 32 hexadecimal digits, unique among all clients of a server. Payloads are msgpack.
/// Pure functions, any thread. docs/design/verifiers.md describes the JSON of calls and answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"

namespace primerl {

enum class VerifiersDialect : uint8_t { kW0, kW1a, kW1b, kW1c, kW2 };

/// "w0", "w1a", "w1b", "w1c", "w2".
std::string_view to_string(VerifiersDialect dialect);
/// None: not one of these names.
std::optional<VerifiersDialect> verifiers_dialect(std::string_view name);

using Frames = std::vector<std::string>;

/// Asks whether the server lives. W0 answers on the id "health", whatever `id` is.
Frames health_request(VerifiersDialect dialect, const std::string& id);
/// A request of W1 and W2 without arguments: "info", or "run" to see whether the method exists.
Frames empty_request(std::string_view method, const std::string& id);
/// None: the dialect cannot cancel (W1a, W1b).
std::optional<Frames> cancel_request(VerifiersDialect dialect, const std::string& id,
                                     const std::string& run_id);
/// The way in which the server asks the policy; the same for all runs of a pool.
struct PolicyClient {
  bool is_training = true;     // token ids in and out; else chat
  Json renderer;               // a config of the package renderers; null: it chooses by the name
  std::string renderer_model;  // the name that it chooses by; empty: the model's
};
/// The request of a call "run". kInvalid: the call lacks something, or the dialect cannot do it.
Result<Frames> run_request(VerifiersDialect dialect, const std::string& id, const Json& call,
                           const PolicyClient& client);

/// The number of results that the call wants.
Result<int64_t> members_of(const Json& call);
inline constexpr int64_t kRunMembersMax = 4096;

struct ServerFrame {
  std::string_view id;
  bool is_delta = false;  // W2: a part of the answer; others follow
  std::string_view payload;
};
/// Views into `frames`. kCorrupt: another number of frames than the dialect has, or another kind.
Result<ServerFrame> read_server_frame(VerifiersDialect dialect, const Frames& frames);

/// The `error` of a reply with `success: false`; none if it succeeded. kCorrupt: it has no
/// `success`.
Result<std::optional<std::string>> failure_of(const Json& reply);
/// True for the error of a server that does not know the method.
bool is_unknown_method(std::string_view failure);

}  // namespace primerl
