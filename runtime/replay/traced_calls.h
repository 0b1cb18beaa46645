/// TracedCalls: records the answers of a resource's calls, or repeats them from the record.
///
/// An answer is a message. Its first members are the call and its error; the others are the
/// returned values. Shared by traced_engine and traced_learner; docs/formats/trace.md describes the
/// notes that contain them. Threads: the thread of the resource.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/wire/msgpack_codec.h"

namespace primerl {

/// Stores one answer; called inside the resource's calls.
using KeepAnswer = std::function<void(std::vector<std::byte>)>;
/// The next answer of the current step; null: the recorded run made fewer calls.
using NextAnswer = std::function<const std::vector<std::byte>*()>;

/// Writes a resource's part of a cut: fields() as msgpack, without Blobs.
template <class T>
Blob written_state(const T& value) {
  MsgpackWriter writer;
  wire::write(writer, value);
  return Blob(writer.take_body());
}
template <class T>
Result<T> read_state(std::span<const std::byte> bytes) {
  MsgpackReader reader(bytes);
  T value;
  wire::read(reader, value);
  RETURN_IF_ERROR(reader.finish());
  return value;
}

template <class T>
Result<T> read_state(const Blob& bytes) {
  return read_state<T>(bytes.bytes());
}

/// `Answer` has members call, has_failed, code and text; `Call` has to_string().
template <Message Answer, class Call>
class TracedCalls {
 public:
  /// Either `next` (repeats) or `keep` (records), or neither. `who` is for the text of errors.
  TracedCalls(std::string_view who, NextAnswer next, KeepAnswer keep)
      : who_(who), next_(std::move(next)), keep_(std::move(keep)) {}

  bool has_record() const { return next_ != nullptr; }
  bool is_recording() const { return keep_ != nullptr; }

  /// The next recorded answer, which must be for `call`; the recorded error when the call failed.
  Result<Answer> take(Call call) const {
    const auto* bytes = next_();
    if (bytes == nullptr)
      return error(Code::kNotFound, "the record has no answer of the {} to this '{}'", who_,
                   to_string(call));
    ASSIGN_OR_RETURN(const Payload payload, decode_message(message_type<Answer>(), *bytes));
    const auto& answer = payload.as<Answer>();
    if (answer.call != static_cast<uint8_t>(call))
      return error(Code::kCorrupt, "the {} was asked for '{}', in the recorded run for '{}'", who_,
                   to_string(call), to_string(static_cast<Call>(answer.call)));
    if (answer.has_failed) return Error(static_cast<Code>(answer.code), answer.text);
    return answer;
  }
  Status take_status(Call call) const {
    const auto answer = take(call);
    return answer.ok() ? ok() : Status(answer.error());
  }

  void keep(Call call, Answer answer) const {
    if (keep_ == nullptr) return;
    answer.call = static_cast<uint8_t>(call);
    auto encoded = encode_in_body(Payload::of(std::move(answer)));
    CHECK(encoded.ok(), "an answer of a resource is larger than a message");
    keep_(std::move(encoded->body));
  }
  Status keep(Call call, Status status) const {
    if (keep_ == nullptr) return status;
    Answer answer;
    if (!status.ok()) {
      answer.has_failed = true;
      answer.code = static_cast<uint8_t>(status.error().code());
      answer.text = status.error().text();
    }
    keep(call, std::move(answer));
    return status;
  }
  /// `put(answer, value)` writes a call's result into its answer.
  template <class T, class Put>
  Result<T> keep(Call call, Result<T> result, const Put& put) const {
    if (!result.ok()) {
      (void)keep(call, Status(result.error()));
    } else {
      Answer answer;
      put(answer, *result);
      keep(call, std::move(answer));
    }
    return result;
  }

 private:
  const std::string_view who_;
  const NextAnswer next_;
  const KeepAnswer keep_;
};

}  // namespace primerl
