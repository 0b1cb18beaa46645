#include "actors/router/session_table.h"

namespace primerl {

void SessionTable::index() const {
  if (places_.size() == entries_.size()) return;
  places_.clear();
  for (uint32_t place = 0; place < entries_.size(); ++place)
    places_.emplace(entries_[place].name, place);
}

const SessionTable::Session* SessionTable::find(const SessionName& name) const {
  index();
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &entries_[found->second].session;
}

void SessionTable::put(const SessionName& name, Session session, size_t sessions_max) {
  index();
  const auto known = places_.find(name);
  uint32_t place = 0;
  if (known != places_.end()) {
    place = known->second;
    unlink(place);
  } else if (entries_.size() < sessions_max) {
    place = static_cast<uint32_t>(entries_.size());
    entries_.emplace_back();
    places_.emplace(name, place);
  } else {
    place = oldest_;
    places_.erase(entries_[place].name);
    places_.emplace(name, place);
    unlink(place);
  }
  entries_[place].name = name;
  entries_[place].session = session;
  link_newest(place);
}

void SessionTable::unlink(uint32_t place) {
  const Entry& entry = entries_[place];
  (entry.older == kNone ? oldest_ : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? newest_ : entries_[entry.newer].older) = entry.older;
}

void SessionTable::link_newest(uint32_t place) {
  entries_[place].older = newest_;
  entries_[place].newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[newest_].newer) = place;
  newest_ = place;
}

}  // namespace primerl
