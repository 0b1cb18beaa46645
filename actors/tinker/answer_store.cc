#include "actors/tinker/answer_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "actors/tinker/names.h"

namespace primerl::tinker {

Status AnswerStore::check_open(TenantSlot tenant, size_t num_tenants) const {
  if (open_.has_space(tenant, 1, num_tenants)) return ok();
  return error(Code::kExhausted,
               "{} requests have no answer yet, {} of them are of this tenant; at most {} may be "
               "open, and {} tenants share them",
               open_.used(), open_.used_by(tenant), open_.most(), num_tenants);
}

void AnswerStore::open(uint64_t request, TenantSlot tenant) {
  const bool is_new = futures_.emplace(request, Future{tenant, true, {}}).second;
  CHECK(is_new, "a request number is used twice");
  open_.add(tenant, 1);
}

AnswerStore::Futures::iterator AnswerStore::erase(Futures::iterator entry) {
  if (entry->second.is_open) {
    open_.subtract(entry->second.tenant, 1);
  } else {
    num_bytes_ -= entry->second.answer.body.size();
  }
  gone_.emplace(entry->first, entry->second.tenant);
  if (gone_.size() > kGoneMax) gone_.erase(gone_.begin());
  return futures_.erase(entry);
}

/// The answer that the tenant with the largest answers keeps longest, so that no tenant's answers
/// are dropped for a flood of another; the first request among equals. False: none is kept.
bool AnswerStore::drop_oldest(TenantSlot incoming, uint64_t num_bytes) {
  std::map<TenantSlot, uint64_t> sizes = {{incoming, num_bytes + kAnswerBytes}};
  for (const auto& [request, future] : futures_)
    if (!future.is_open) sizes[future.tenant] += future.answer.body.size() + kAnswerBytes;
  uint64_t largest = 0;
  auto oldest = futures_.end();
  for (auto entry = futures_.begin(); entry != futures_.end(); ++entry) {
    if (entry->second.is_open) continue;
    const uint64_t size = sizes.at(entry->second.tenant);
    if (size < largest) continue;
    if (size == largest && oldest != futures_.end() &&
        entry->second.answer.since >= oldest->second.answer.since)
      continue;
    largest = size;
    oldest = entry;
  }
  if (oldest == futures_.end()) return false;
  erase(oldest);
  return true;
}

Status AnswerStore::complete(uint64_t request, std::string_view body, bool is_protobuf, Time now) {
  const auto found = futures_.find(request);
  if (found == futures_.end()) return ok();
  CHECK(found->second.is_open, "a request has two answers");
  if (body.size() > limits_.bytes_max)
    return error(Code::kExhausted, "the answer has {} bytes, at most {} are kept", body.size(),
                 limits_.bytes_max);
  while (body.size() > limits_.bytes_max - num_bytes_ ||
         futures_.size() - open_.used() >= limits_.answers_max) {
    if (!drop_oldest(found->second.tenant, body.size())) break;
  }
  found->second.is_open = false;
  found->second.answer = {{body.begin(), body.end()}, is_protobuf, now};
  open_.subtract(found->second.tenant, 1);
  num_bytes_ += body.size();
  return ok();
}

Result<const StoredAnswer*> AnswerStore::find(uint64_t request, TenantSlot tenant) const {
  if (const auto found = futures_.find(request);
      found != futures_.end() && found->second.tenant == tenant)
    return found->second.is_open ? nullptr : &found->second.answer;
  if (const auto gone = gone_.find(request); gone != gone_.end() && gone->second == tenant)
    return error(Code::kCancelled, "the answer of request '{}' is gone", request_name(request))
        .note("send the request again");
  return error(Code::kNotFound, "no request '{}'", request_name(request));
}

TenantSlot AnswerStore::tenant_of(uint64_t request) const {
  if (const auto found = futures_.find(request); found != futures_.end())
    return found->second.tenant;
  const auto gone = gone_.find(request);
  return gone == gone_.end() ? TenantSlot() : gone->second;
}

Time AnswerStore::next_expiry() const {
  Time next = Time::from_nanoseconds(INT64_MAX);
  for (const auto& [request, future] : futures_)
    if (!future.is_open) next = std::min(next, future.answer.since + limits_.keep);
  return next;
}

void AnswerStore::forget(uint64_t request) {
  const auto found = futures_.find(request);
  if (found != futures_.end()) erase(found);
}

void AnswerStore::expire(Time now) {
  for (auto entry = futures_.begin(); entry != futures_.end();) {
    const bool is_old = !entry->second.is_open && now - entry->second.answer.since >= limits_.keep;
    entry = is_old ? erase(entry) : std::next(entry);
  }
}

void AnswerStore::drop(TenantSlot tenant) {
  for (auto entry = futures_.begin(); entry != futures_.end();)
    entry = entry->second.tenant == tenant ? erase(entry) : std::next(entry);
  std::erase_if(gone_, [&](const auto& each) { return each.second == tenant; });
}

}  // namespace primerl::tinker
