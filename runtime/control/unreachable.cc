#include "runtime/control/unreachable.h"

namespace primerl {

Error unreachable(const std::string& who, const std::string& public_key, FrameDialer::Try newest) {
  switch (newest) {
    case FrameDialer::Try::kNobody:
      return error(Code::kUnavailable, "{} cannot be reached: nothing listens there", who)
          .note("start it on that machine: primerl-graph agent --listen ADDRESS:PORT");
    case FrameDialer::Try::kNotAllowed:
      return error(Code::kInvalid, "{} does not let this key in", who)
          .note(fmt::format("on that machine: primerl-graph keys allow '{}' --process control",
                            public_key));
    case FrameDialer::Try::kHandshake:
      return error(Code::kInvalid, "{} does not speak as the hosts file says: the handshake failed",
                   who)
          .note(
              "'key' of the hosts file is the public key of its --keys, left out where it has "
              "none; or something else listens there");
    case FrameDialer::Try::kConnected:
      return error(Code::kUnavailable, "{} takes connections and says nothing: is it an agent?",
                   who);
    case FrameDialer::Try::kPending:
      break;
  }
  return error(Code::kDeadline, "{} does not answer", who)
      .note("is the address right, and does a network lead there from this machine?");
}

}  // namespace primerl
