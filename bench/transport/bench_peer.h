/// Definitions shared by the transport benchmark and its peer process.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/transport/zmq_transport.h"

namespace primerl {

/// A message whose bytes are in its body, or in a Blob beside it.
struct Load {
  static constexpr std::string_view kName = "Load";
  static constexpr uint32_t kVersion = 1;
  uint64_t number = 0;
  bool wants_answer = false;
  bool wants_grant = false;  // the last message of a window
  bool is_read = false;      // the receiver reads every cache line
  std::vector<uint8_t> bytes;
  Blob blob;
  template <class F>
  static void fields(F& f) {
    f("number", &Load::number)("wants_answer", &Load::wants_answer)(
        "wants_grant", &Load::wants_grant)("is_read", &Load::is_read)("bytes", &Load::bytes)(
        "blob", &Load::blob);
  }
};

/// Imitates the hosts' credits: a grant is requested with every so many messages (which divides
/// every count sent), and at most so many messages are sent without one.
struct Window {
  uint64_t grant_every = 512;
  uint64_t messages = 2048;
};

inline TransportIdentity bench_identity(uint32_t process) {
  static const auto types = std::make_shared<const WireTypes>(std::vector{&message_type<Load>()});
  return {"bench", 1, types, ProcessId(process), fmt::format("process{}", process), 1};
}

/// The peer process: counts arriving messages, grants, echoes; ends when the first process does.
int run_peer(const std::string& folder);

/// One key pair for both processes, in the folder of the bench.
inline std::filesystem::path key_file(const std::string& folder) { return folder + "/keys"; }

enum class BareWay { kIpc, kTcp, kCurve };

/// The peer's end of the bare sockets, in that process; runs until a frame of one byte arrives.
void run_bare_peer(const std::string& folder, BareWay way);

/// Writes a word into a file for the other process.
void leave_word(const std::string& file, const std::string& word);
std::string wait_for_word(const std::string& file);

/// One side of a pair of bare sockets: ZeroMQ with the same frames and nothing else.
class BareConnection {
 public:
  BareConnection(const std::string& folder, BareWay way);
  ~BareConnection();
  BareConnection(const BareConnection&) = delete;
  BareConnection& operator=(const BareConnection&) = delete;
  /// Sends `count` frames of one part, or of two when `second_bytes` > 0 (shared, not copied);
  /// waits for the peer's grants as the transport's benchmark does.
  void send(uint64_t count, size_t first_bytes, size_t second_bytes, const Window& window);
  /// Sends one frame and waits for its echo.
  void round_trip(size_t bytes);

 private:
  void take_grant(bool waits);
  void* context_;
  void* socket_;
  uint64_t granted_ = 0;
  uint64_t sent_ = 0;
  std::vector<std::byte> memory_;
};

}  // namespace primerl
