#include "runtime/outside/slot_outside.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace primerl {
namespace {

class SlotOutside final : public Outside {
 public:
  SlotOutside(OutsideSpec first, OutsideMaker make)
      : make_(std::move(make)), spec_(std::move(first)) {}

  void begin_tenant(OutsideSpec spec) override {
    end_tenant();
    spec_ = std::move(spec);
    if (wake_) start();
  }
  void end_tenant() override {
    outside_.reset();
    spec_ = {};
    open_.clear();
    fault_.clear();
    is_stopped_ = false;
  }

  Status ask(OutsideCall call) override {
    if (outside_ == nullptr)
      return error(Code::kInvalid, "a call to outside from a slot whose tenant asks nothing there");
    if (is_stopped_) return ok();
    const uint64_t id = call.id;
    if (fault_.empty()) RETURN_IF_ERROR(outside_->ask(std::move(call)));
    if (open_.size() >= kOutsideCallsMax)
      return error(Code::kExhausted, "{} calls wait for an answer from outside already",
                   open_.size());
    open_.insert(id);
    return ok();
  }
  void forget(uint32_t pool, uint64_t session) override {
    if (outside_ != nullptr && fault_.empty()) outside_->forget(pool, session);
  }
  std::vector<OutsideAnswer> receive_answers() override {
    if (outside_ == nullptr) return {};
    if (fault_.empty()) {
      auto answers = outside_->receive_answers();
      for (const OutsideAnswer& answer : answers) open_.erase(answer.id);
      return answers;
    }
    std::vector<OutsideAnswer> answers;
    for (; !open_.empty() && answers.size() < kOutsideAnswersMax; open_.erase(open_.begin()))
      answers.push_back({*open_.begin(), OutsideEnd::kUnusable, fault_});
    return answers;
  }
  void stop() override {
    open_.clear();
    is_stopped_ = true;
    if (outside_ != nullptr) outside_->stop();
  }
  void set_wake(std::function<void()> wake) override {
    wake_ = wake ? std::move(wake) : [] {};
    if (outside_ != nullptr)
      outside_->set_wake(wake_);
    else
      start();
  }
  /// A fault of the outside is one of its tenant: answers report it.
  Status step() override {
    if (outside_ == nullptr || !fault_.empty()) return ok();
    const Status fault = outside_->step();
    if (fault.ok()) return ok();
    fault_ = fault.error().text();
    if (!open_.empty()) wake_();
    return ok();
  }
  bool has_work() const override {
    if (outside_ == nullptr) return false;
    return fault_.empty() ? outside_->has_work() : !open_.empty();
  }
  std::string describe() const override { return outside_ == nullptr ? "" : outside_->describe(); }

 private:
  void start() {
    if (spec_.pools.empty()) return;
    outside_ = make_(spec_);
    outside_->set_wake(wake_);
  }

  const OutsideMaker make_;
  OutsideSpec spec_;                  // of the present tenant
  std::function<void()> wake_;        // null: before set_wake()
  std::shared_ptr<Outside> outside_;  // null: the tenant asks nothing outside, or there is none
  std::set<uint64_t> open_;           // calls without an answer; at most kOutsideCallsMax
  std::string fault_;                 // of outside_; empty: it can be used
  bool is_stopped_ = false;           // until the next tenant
};

}  // namespace

std::shared_ptr<Outside> make_slot_outside(OutsideSpec first, OutsideMaker make) {
  return std::make_shared<SlotOutside>(std::move(first), std::move(make));
}

}  // namespace primerl
