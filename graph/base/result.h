/// Errors as values: `Error`, `Result<T>` and `Status`.
///
/// A function that can fail returns `Result<T>`, or `Status` if it has no value. An Error says what
/// happened in words that a person can act on; `Code` is for programs. Our own mistakes are not
/// Errors: they end in CHECK (assert.h). Values, no threads, no global state.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/assert.h"

namespace primerl {

/// The kind of failure, for programs. The text is for people.
enum class Code {
  kInvalid,      // the input is wrong and will stay wrong
  kNotFound,     // a named thing does not exist
  kExists,       // a thing exists that must not exist
  kExhausted,    // a written limit was reached
  kDeadline,     // a wait ran out of time
  kCancelled,    // the end was requested
  kUnavailable,  // may work later
  kCorrupt,      // the bytes are not what they claim to be
  kIo,           // the operating system refused
  kInternal,     // a bug or an exception; the text is kept
  kDeviceLost,   // the CUDA device of this process cannot compute any more; a new process may
                 // succeed
};

/// The code's stable name, e.g. "invalid".
std::string_view to_string(Code code);

/// A failure: a code, one sentence, and optional notes ("what was valid", "what to do").
class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::vector<std::string>& notes() const { return notes_; }

  /// Adds a line after the message; returns *this so that calls can be chained.
  Error&& note(std::string text) && {
    notes_.push_back(std::move(text));
    return std::move(*this);
  }
  /// Prefixes the message with what was being done: "reading 'x': <message>".
  Error&& while_doing(std::string_view what) && {
    message_ = fmt::format("{}: {}", what, message_);
    return std::move(*this);
  }
  /// Message and notes, one per line.
  std::string text() const;

 private:
  Code code_;
  std::string message_;
  std::vector<std::string> notes_;
};

/// `return error(Code::kNotFound, "no node '{}'", name);`
template <class... Args>
Error error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// A value or an Error. Reading the one that it does not have is a CHECK failure.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  const T& value() const& {
    CHECK(ok(), error_->text());
    return *value_;
  }
  T& value() & {
    CHECK(ok(), error_->text());
    return *value_;
  }
  T&& value() && {
    CHECK(ok(), error_->text());
    return std::move(*value_);
  }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

  const Error& error() const& {
    CHECK(!ok(), "error() of a result that holds a value");
    return *error_;
  }
  Error&& error() && {
    CHECK(!ok(), "error() of a result that holds a value");
    return std::move(*error_);
  }

 private:
  std::optional<T> value_;
  std::optional<Error> error_;
};

/// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    CHECK(!ok(), "error() of a status that is ok");
    return *error_;
  }
  Error&& error() && {
    CHECK(!ok(), "error() of a status that is ok");
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

inline Status ok() { return {}; }

/// Returns the error of `expression` from the function, if it has one.
#define RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                 \
    if (auto status_ = (expression); !status_.ok()) return std::move(status_).error(); \
  } while (false)

/// `ASSIGN_OR_RETURN(auto file, open(path));`
#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_NAMED_(PRIMERL_JOIN_(result_, __LINE__), target, expression)
#define ASSIGN_OR_RETURN_NAMED_(name, target, expression) \
  auto name = (expression);                               \
  if (!name.ok()) return std::move(name).error();         \
  target = std::move(name).value()
#define PRIMERL_JOIN_(a, b) PRIMERL_JOIN_AGAIN_(a, b)
#define PRIMERL_JOIN_AGAIN_(a, b) a##b

}  // namespace primerl
