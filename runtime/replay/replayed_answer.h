/// One answer of a resource as stored in the trace: a message whose first members are the call and
/// how it failed. Shared by replayed_engine and replayed_learner. Pure.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "runtime/wire/msgpack_codec.h"

namespace primerl {

/// Takes one answer; called inside the resource's calls.
using KeepAnswer = std::function<void(std::vector<std::byte>)>;
/// The next answer of the current step; null: the recorded run made fewer calls.
using NextAnswer = std::function<const std::vector<std::byte>*()>;

/// `Answer` has members call, has_failed, code and text.
template <Message Answer, class Call>
Answer answer_to(Call call, const Status& status) {
  Answer answer;
  answer.call = static_cast<uint8_t>(call);
  if (status.ok()) return answer;
  answer.has_failed = true;
  answer.code = static_cast<uint8_t>(status.error().code());
  answer.text = status.error().text();
  return answer;
}

template <Message Answer>
std::vector<std::byte> bytes_of_answer(Answer answer) {
  auto encoded = encode_message(Payload::of(std::move(answer)));
  CHECK(encoded.ok(), "an answer of a resource is larger than a message");
  return std::move(encoded->body);
}

/// The next recorded answer, which must be to `call`; the recorded error when the call failed.
/// `who` and to_string(Call) are for the text of other errors.
template <Message Answer, class Call>
Result<Answer> take_answer(const NextAnswer& next, Call call, std::string_view who) {
  const auto* bytes = next();
  if (bytes == nullptr)
    return error(Code::kNotFound, "the record has no answer of the {} to this '{}'", who,
                 to_string(call));
  ASSIGN_OR_RETURN(const Payload payload, decode_message(message_type<Answer>(), *bytes));
  const auto& answer = payload.as<Answer>();
  if (answer.call != static_cast<uint8_t>(call))
    return error(Code::kCorrupt, "the {} was asked for '{}', in the recorded run for '{}'", who,
                 to_string(call), to_string(static_cast<Call>(answer.call)));
  if (answer.has_failed) return Error(static_cast<Code>(answer.code), answer.text);
  return answer;
}

}  // namespace primerl
