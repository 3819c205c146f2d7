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

void RunAccount::resume(std::string_view notes, std::optional<double> last_sign) {
  const std::lock_guard lock(mutex_);
  const Result<std::optional<Account>> before = notes.empty() ? std::optional<Account>() : account_of(notes);
  if (before && *before) {
    sums_ = (*before)->sums;
    if ((*before)->origin > 0) origin_ = std::min(origin_, (*before)->origin);
    ++sums_.saves;  // the save of these notes
  }
  if (!last_sign) return;
  ++sums_.failures;
  if (before && *before && (*before)->saved > 0) sums_.redone += std::max(0.0, *last_sign - (*before)->saved);
  last_sign_ = last_sign;
}

void RunAccount::step(double now) {
  const std::lock_guard lock(mutex_);
  if (last_sign_) {
    const double step = mean(free_steps_, free_step_count_);
    sums_.restarts += std::max(0.0, now - *std::exchange(last_sign_, std::nullopt) - step);
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

void RunAccount::save_begins(double now) {
  const std::lock_guard lock(mutex_);
  begun_ = now;
  is_in_call_ = true;
  call_ = 0;
}

void RunAccount::save_returns(double now) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(is_in_call_, false) || !begun_) return;
  call_ = std::max(0.0, now - *begun_);
  sums_.calls += call_;
  calls_here_ += call_;
  ++calls_count_;
  if (last_step_) last_step_ = now;  // the next step begins here
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
  sums_.failed_saves += is_in_call_ ? seconds : call_;
  if (std::exchange(is_in_call_, false)) sums_.calls += seconds;
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
  report.elapsed = std::max(0.0, now - origin_);
  return report;
}

std::string RunAccount::text(double now) const {
  const ManagedRunReport sums = report(now);
  const std::lock_guard lock(mutex_);
  return fmt::format(
      R"({{"started": {}, "saved": {}, "calls": {}, "slower_steps": {}, "failed_saves": {}, "restarts": {}, )"
      R"("redone": {}, "saves": {}, "failed": {}, "failures": {}}})",
      origin_, now, sums.calls, sums.slower_steps, sums.failed_saves, sums.restarts, sums.redone, sums.saves,
      sums.failed, sums.failures);
}

}  // namespace cairn::run

namespace cairn {

double ManagedRunReport::good_share() const {
  const double lost = calls + slower_steps + restarts + redone;
  return elapsed > 0 ? std::max(0.0, 1 - lost / elapsed) : 1;
}

}  // namespace cairn
