/// MemoryPart: something that an engine, a learner or a weight channel keeps in memory at its peak,
/// and its size in bytes. `check` adds the parts before a run starts. Plain values, any thread.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace primerl {

/// Which resources share one copy of a part with the same name.
enum class Sharing : uint8_t {
  kNone,
  kModel,    // resources of one process with the same model
  kProcess,  // resources of one process, whatever their model
  kMachine,  // resources of all processes of the machine, in shared memory
};

struct MemoryPart {
  std::string what;  // "base weights", "adapter of tenant 'a' (rank 8), gradients and moments"
  double bytes = 0;  // a whole number, exact below 2^53
  Sharing sharing = Sharing::kNone;
  bool is_optional = false;  // left out if memory is short: slower, but it works
};

inline double sum_of(std::span<const MemoryPart> parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const MemoryPart& part) { return sum + part.bytes; });
}

/// The memory of the resources of one process. A shared part is counted once.
class ProcessMemory {
 public:
  struct Held {
    std::vector<std::string> owners;  // "engine 'engine'"
    std::string model;                // folder of the model; empty: none
    MemoryPart part;

    /// "engine 'engine' and learner 'learner'".
    std::string owners_text() const;
    /// The name of the part, and "held once" if several owners share it.
    std::string what_text() const;
  };

  void add(const std::string& owner, const std::string& model, std::span<const MemoryPart> parts);
  const std::vector<Held>& all() const { return all_; }  // in the order in which they were added
  double bytes() const;
  /// The sum of the parts that are not optional.
  double needed_bytes() const;
  /// The part of this name and model that can be shared; null if there is none.
  const Held* find_shared(const std::string& what, const std::string& model) const;

 private:
  std::vector<Held> all_;
};

/// For example "1.5 MiB".
std::string memory_text(double bytes);

}  // namespace primerl
