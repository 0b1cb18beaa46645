/// MemoryPart: something that an engine or a learner keeps in memory for as long as it lives, and
/// its bytes. `check` adds parts up before anything is made. Plain values, any thread.
#pragma once

#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace primerl {

struct MemoryPart {
  std::string what;  // "base weights", "adapter of tenant 'a' (rank 8), gradients and moments"
  double bytes = 0;  // whole, and exact below 2^53
  /// All of a process that have such a part, of the same name and model, have one together.
  bool is_shared = false;
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
  /// Null: nobody has this part of this model to share.
  const Held* find_shared(const std::string& what, const std::string& model) const;

 private:
  std::vector<Held> all_;
};

/// "1.5 MiB".
std::string memory_text(double bytes);

}  // namespace primerl
