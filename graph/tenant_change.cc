#include "graph/tenant_change.h"

namespace primerl {

std::string_view to_string(TenantChange::Kind kind) {
  switch (kind) {
    case TenantChange::Kind::kJoin:
      return "join";
    case TenantChange::Kind::kStart:
      return "start";
    case TenantChange::Kind::kPause:
      return "pause";
    case TenantChange::Kind::kResume:
      return "resume";
    case TenantChange::Kind::kLeave:
      return "leave";
    case TenantChange::Kind::kSet:
      return "set";
  }
  return "";
}

}  // namespace primerl
