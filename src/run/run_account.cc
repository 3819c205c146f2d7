#include "run/run_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "format/json/json_reader.h"

namespace cairn::run {
namespace {

double fraction_of(std::string_view digits) {
  double number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return std::isfinite(number) && number > 0 ? number : 0;
}

std::uint64_t count_of(std::string_view digits) {
  std::uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

struct Account {
  double origin = 0;
  double saved = 0;  // when the save began
  double idle = 0;
  ManagedRunReport sums;
};

// Of the value of the member "run".
Result<Account> account_in(json::JsonReader& reader) {
  Account account;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(const auto name, reader.next_name());
    if (!name) return account;
    CAIRN_TRY_ASSIGN(const std::string_view digits, reader.read_value_text());
    if (*name == "started") account.origin = fraction_of(digits);
    if (*name == "saved") account.saved = fraction_of(digits);
    if (*name == "idle") account.idle = fraction_of(digits);
    if (*name == "calls") account.sums.calls = fraction_of(digits);
    if (*name == "slower_steps") account.sums.slower_steps = fraction_of(digits);
    if (*name == "failed_saves") account.sums.failed_saves = fraction_of(digits);
    if (*name == "restarts") account.sums.restarts = fraction_of(digits);
    if (*name == "redone") account.sums.redone = fraction_of(digits);
    if (*name == "saves") account.sums.saves = count_of(digits);
    if (*name == "failed") account.sums.failed = count_of(digits);
    if (*name == "failures") account.sums.failures = count_of(digits);
  }
}

Result<std::optional<Account>> account_of(std::string_view notes) {
  json::JsonReader reader(notes, 0);
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(const auto name, reader.next_name());
    if (!name) return std::optional<Account>();
    if (*name == "run") {
      CAIRN_TRY_ASSIGN(const Account account, account_in(reader));
      return std::optional(account);
    }
    CAIRN_TRY(reader.skip_value());
  }
}

double mean(double sum, double count) { return count > 0 ? sum / count : 0; }

}  // namespace

void RunAccount::resume(std::string_view notes) {
  const std::lock_guard lock(mutex_);
  const Result<std::optional<Account>> before = notes.empty() ? std::optional<Account>() : account_of(notes);
  if (!before || !*before) return;
  sums_ = (*before)->sums;
  idle_ = (*before)->idle;
  if ((*before)->origin > 0) origin_ = std::min(origin_, (*before)->origin);
  ++sums_.saves;  // the save of these notes
  if ((*before)->saved <= 0) return;
  resumed_from_ = (*before)->saved;
  idle_before_ = std::max(0.0, started_ - *resumed_from_);
}

void RunAccount::fail(const FailedProcess& process) {
  const std::lock_guard lock(mutex_);
  ++sums_.failures;
  idle_before_ = 0;
  const double started = process.started > 0 ? process.started : resumed_from_.value_or(process.last_sign);
  if (resumed_from_) {  // before `started`, the job waited in a queue
    idle_before_ = std::max(0.0, started - *resumed_from_);
    sums_.redone += std::max(0.0, process.last_sign - std::max(started, *resumed_from_));
  } else {
    origin_ = std::min(origin_, started);
    sums_.redone += std::max(0.0, process.last_sign - started);
  }
  if (first_step_) {
    add_restart(process.last_sign);
  } else {
    last_sign_ = process.last_sign;
  }
}

// The first step is a step of the training, and no part of the restart.
void RunAccount::add_restart(double last_sign) {
  sums_.restarts += std::max(0.0, *first_step_ - last_sign - mean(free_steps_, free_step_count_));
}

void RunAccount::step(double now) {
  const std::lock_guard lock(mutex_);
  if (!first_step_) {
    first_step_ = now;
    if (last_sign_) add_restart(*last_sign_);
  }
  if (last_step_) {
    const double seconds = std::max(0.0, now - *last_step_);
    if (!begun_) {
      free_steps_ += seconds;
      ++free_step_count_;
    } else if (free_step_count_ > 0) {
      const double slower = std::max(0.0, seconds - mean(free_steps_, free_step_count_));
      sums_.slower_steps += slower;
      slower_here_ += slower;
    }
  }
  last_step_ = now;
}

void RunAccount::save_begins(double now, double waited) {
  const std::lock_guard lock(mutex_);
  begun_ = call_begun_ = now;
  has_call_failed_ = false;
  call_ = 0;
  add_call(waited);
}

void RunAccount::save_returns(double now) {
  const std::lock_guard lock(mutex_);
  if (!call_begun_) return;
  call_ = std::max(0.0, now - *std::exchange(call_begun_, std::nullopt));
  add_call(call_);
  if (std::exchange(has_call_failed_, false)) sums_.failed_saves += call_;
  ++calls_count_;
  if (last_step_) last_step_ = now;  // the next step begins here
}

void RunAccount::add_call(double seconds) {
  sums_.calls += seconds;
  calls_here_ += seconds;
}

void RunAccount::save_ends(bool is_durable, double now) {
  const std::lock_guard lock(mutex_);
  if (!begun_) return;
  const double seconds = std::max(0.0, now - *std::exchange(begun_, std::nullopt));
  if (is_durable) {
    ++sums_.saves;
    durable_ += seconds;
    ++durable_count_;
    return;
  }
  ++sums_.failed;
  has_call_failed_ = call_begun_.has_value();
  if (!has_call_failed_) sums_.failed_saves += call_;
}

void RunAccount::save_drops(double now) {
  const std::lock_guard lock(mutex_);
  begun_.reset();
  if (!call_begun_) return;
  sums_.calls += std::max(0.0, now - *std::exchange(call_begun_, std::nullopt));
  if (last_step_) last_step_ = now;
}

RunCosts RunAccount::costs() const {
  const std::lock_guard lock(mutex_);
  return {.save = mean(calls_here_ + slower_here_, calls_count_),
          .durable = mean(durable_, durable_count_),
          .restart = mean(sums_.restarts, static_cast<double>(sums_.failures))};
}

ManagedRunReport RunAccount::report(double now) const {
  const std::lock_guard lock(mutex_);
  ManagedRunReport report = sums_;
  report.elapsed = std::max(0.0, now - origin_ - idle_ - idle_before_);
  return report;
}

std::string RunAccount::text(double now) const {
  const ManagedRunReport sums = report(now);
  const std::lock_guard lock(mutex_);
  return fmt::format(
      R"({{"started": {}, "saved": {}, "idle": {}, "calls": {}, "slower_steps": {}, "failed_saves": {}, )"
      R"("restarts": {}, "redone": {}, "saves": {}, "failed": {}, "failures": {}}})",
      origin_, now, idle_ + idle_before_, sums.calls, sums.slower_steps, sums.failed_saves, sums.restarts, sums.redone,
      sums.saves, sums.failed, sums.failures);
}

}  // namespace cairn::run

namespace cairn {

double ManagedRunReport::good_share() const {
  const double lost = calls + slower_steps + restarts + redone;
  return elapsed > 0 ? std::max(0.0, 1 - lost / elapsed) : 1;
}

}  // namespace cairn
