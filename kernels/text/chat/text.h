/// Text with the origin of every byte: the template, the caller's data, or one message.
///
/// A Text is immutable and shared by count; a TextBuilder makes one. The count is not atomic: a
/// Text belongs to one rendering, on one thread. Bytes are valid UTF-8, and runs begin and end at
/// characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primerl::chat {

/// The source of a byte.
using Origin = uint32_t;
inline constexpr Origin kFromTemplate = 0;
inline constexpr Origin kFromCaller = 1;  // tools and chat_template_kwargs
inline constexpr Origin kFromMessages = 2;
/// Set for the role, name and ids of a message; its content, reasoning and calls do not have it.
inline constexpr Origin kHeaderBit = Origin{1} << 30;
/// Set for bytes inside {% generation %}.
inline constexpr Origin kGenerationBit = Origin{1} << 31;

constexpr Origin from_message(size_t message) {
  return kFromMessages + static_cast<Origin>(message);
}
constexpr Origin source_of(Origin origin) { return origin & ~(kHeaderBit | kGenerationBit); }
constexpr bool is_from_template(Origin origin) { return source_of(origin) == kFromTemplate; }
constexpr bool is_from_message(Origin origin) { return source_of(origin) >= kFromMessages; }
/// The message that a byte comes from; only if is_from_message().
constexpr size_t message_of(Origin origin) { return source_of(origin) - kFromMessages; }
/// The origin of a value that was computed from two others: data wins over the template.
constexpr Origin joined(Origin a, Origin b) { return is_from_template(a) ? b : a; }

/// Bytes up to `end` have `origin`; they begin where the run before ends.
struct Run {
  size_t end = 0;
  Origin origin = kFromTemplate;
  friend bool operator==(const Run&, const Run&) = default;
};

/// A value with a count of its owners.
struct Counted {
  Counted() = default;
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  virtual ~Counted() = default;
  uint32_t num_owners = 0;
};

template <class T>
class Shared {
 public:
  Shared() = default;
  explicit Shared(T* value) : value_(value) { ++value_->num_owners; }
  Shared(const Shared& other) : value_(other.value_) {
    if (value_ != nullptr) ++value_->num_owners;
  }
  Shared(Shared&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Shared& operator=(Shared other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Shared() {
    if (value_ != nullptr && --value_->num_owners == 0) delete value_;
  }
  T* get() const { return value_; }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }
  explicit operator bool() const { return value_ != nullptr; }

 private:
  T* value_ = nullptr;
};

struct Text final : public Counted {
  std::string_view bytes;
  Origin origin = kFromTemplate;  // of all bytes if `runs` is empty
  std::vector<Run> runs;
  std::string owned;     // the bytes, unless they are a part of `whole` or of the caller
  Shared<Text> whole;    // the text that this is a part of
  int8_t is_ascii = -1;  // -1: not known yet

  /// Calls `use(begin, end, origin)` for each run of bytes [from, to), in order.
  template <class Use>
  void for_each_run(size_t from, size_t to, Use&& use) const {
    if (runs.empty()) {
      if (from < to) use(from, to, origin);
      return;
    }
    size_t begin = 0;
    for (const Run& run : runs) {
      const size_t first = begin > from ? begin : from;
      const size_t last = run.end < to ? run.end : to;
      if (first < last) use(first, last, run.origin);
      begin = run.end;
      if (begin >= to) break;
    }
  }
  /// Data if any byte is.
  Origin summary() const;
  bool ascii();
};

using TextRef = Shared<Text>;

/// A text of bytes that stay valid as long as the rendering.
TextRef view_of(std::string_view bytes, Origin origin);
TextRef text_of(std::string bytes, Origin origin);
/// Bytes [begin, end) of `text`, shared.
TextRef part_of(const TextRef& text, size_t begin, size_t end);

class TextBuilder {
 public:
  void append(std::string_view bytes, Origin origin) {
    if (bytes.empty()) return;
    bytes_.append(bytes);
    if (!runs_.empty() && runs_.back().origin == origin)
      runs_.back().end = bytes_.size();
    else
      runs_.push_back({bytes_.size(), origin});
  }
  /// Bytes [from, to) of `text`; `mark` is added to their origins.
  void append(const Text& text, size_t from, size_t to, Origin mark = 0) {
    text.for_each_run(from, to, [&](size_t begin, size_t end, Origin origin) {
      append(text.bytes.substr(begin, end - begin), origin | mark);
    });
  }
  void append(const Text& text, Origin mark = 0) { append(text, 0, text.bytes.size(), mark); }
  size_t size() const { return bytes_.size(); }
  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  void reserve(size_t size) { bytes_.reserve(size); }

  TextRef finish() &&;
  std::pair<std::string, std::vector<Run>> parts() && {
    return {std::move(bytes_), std::move(runs_)};
  }

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace primerl::chat
