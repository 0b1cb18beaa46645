/// LinkState: conversions between the links and inputs of a running group and their saved values
/// (group_state.h). Plain functions; the group's thread.
#pragma once

#include <span>
#include <vector>

#include "runtime/exec/flow.h"
#include "runtime/exec/group_state.h"
#include "runtime/exec/inbox.h"

namespace primerl {

SavedInLink saved_link(const InLink& in);
/// Sets everything but the pause of its input, which belongs to the lanes of the inbox.
void load_link(const SavedInLink& saved, InLink& in);

SavedOutLink saved_link(const OutLink& out);
/// Sets the numbers. The messages and `is_live` change the flow of the whole output, so the caller
/// applies them (Flow::close(), Flow::put_back()).
void load_link(const SavedOutLink& saved, OutLink& out);

/// `links`: the incoming links of the group.
SavedInput saved_input(const Input& input, std::span<const InLink> links);

/// kCorrupt when the bytes are no message of `type`.
Result<Envelope> restored_message(const SavedMessage& saved, const WiredLink& link,
                                  const MessageType& type);
Result<std::vector<Envelope>> restored_messages(const std::vector<SavedMessage>& saved,
                                                const WiredLink& link, const MessageType& type);

}  // namespace primerl
