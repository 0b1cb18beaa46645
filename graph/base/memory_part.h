/// MemoryPart: something that an engine, a learner or a weight channel keeps in memory at its peak,
/// and its bytes. `check` adds parts up before anything is made. Plain values, any thread.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace primerl {

/// Whether all of a process that have a part of one name have one together.
enum class Sharing : uint8_t {
  kNone,
  kModel,    // those of one model
  kProcess,  // whatever their model
  kMachine,  // likewise, and all processes of the machine, in shared memory
};

struct MemoryPart {
  std::string what;  // "base weights", "adapter of tenant 'a' (rank 8), gradients and moments"
  double bytes = 0;  // whole, and exact below 2^53
  Sharing sharing = Sharing::kNone;
  bool is_optional = false;  // left out where the memory is not enough: slower, but it works
};

inline double sum_of(std::span<const MemoryPart> parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const MemoryPart& part) { return sum + part.bytes; });
}

/// What the resources of one process keep: of a part that is shared, and its bytes, once.
class ProcessMemory {
 public:
  struct Held {
    std::vector<std::string> owners;  // "engine 'engine'"
    std::string model;                // a folder; empty: of none
    MemoryPart part;

    /// "engine 'engine' and learner 'learner'".
    std::string owners_text() const;
    /// "base weights, held once".
    std::string what_text() const;
  };

  void add(const std::string& owner, const std::string& model, std::span<const MemoryPart> parts);
  const std::vector<Held>& all() const { return all_; }  // as they were added
  double bytes() const;
  /// Of what is not optional.
  double needed_bytes() const;
  /// Null: no part of this name and model is there to be shared.
  const Held* find_shared(const std::string& what, const std::string& model) const;

 private:
  std::vector<Held> all_;
};

/// "1.5 MiB".
std::string memory_text(double bytes);

}  // namespace primerl
