#include "storage/bucket/store_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "core/whole_number.h"

namespace cairn::storage {
namespace {

// Reads the parts of a date one after the other. After a failed step all further steps fail.
class DateReader {
 public:
  explicit DateReader(std::string_view text) : rest_(text) {}

  void skip(std::string_view expected) {
    good_ = good_ && rest_.substr(0, expected.size()) == expected;
    if (good_) rest_.remove_prefix(expected.size());
  }
  int number(std::size_t digits) {
    const auto number = whole_number<int>(rest_.substr(0, digits));
    good_ = good_ && rest_.size() >= digits && number && *number >= 0;
    if (!good_) return 0;
    rest_.remove_prefix(digits);
    return *number;
  }
  // The index of the word in `words`, whose words have three letters.
  template <std::size_t N>
  int index_in(const std::array<std::string_view, N>& words) {
    const auto found = std::find(words.begin(), words.end(), rest_.substr(0, 3));
    good_ = good_ && found != words.end();
    if (good_) rest_.remove_prefix(3);
    return static_cast<int>(found - words.begin());
  }
  std::string_view take_until(char end) {
    const std::size_t length = std::min(rest_.find(end), rest_.size());
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }
  bool at_end() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

struct DateParts {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
};

std::optional<double> seconds_of(const DateParts& parts) {
  const std::chrono::year_month_day date(std::chrono::year(parts.year),
                                         std::chrono::month(static_cast<unsigned>(parts.month)),
                                         std::chrono::day(static_cast<unsigned>(parts.day)));
  if (!date.ok() || parts.hour > 23 || parts.minute > 59 || parts.second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return static_cast<double>(days) * 86'400 + parts.hour * 3600 + parts.minute * 60 + parts.second;
}

}  // namespace

std::optional<double> time_of_http_date(std::string_view text) {
  constexpr std::array<std::string_view, 7> kDays{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
  constexpr std::array<std::string_view, 12> kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  DateReader reader(text);
  DateParts parts;
  reader.index_in(kDays);
  reader.skip(", ");
  parts.day = reader.number(2);
  reader.skip(" ");
  parts.month = reader.index_in(kMonths) + 1;
  reader.skip(" ");
  parts.year = reader.number(4);
  reader.skip(" ");
  parts.hour = reader.number(2);
  reader.skip(":");
  parts.minute = reader.number(2);
  reader.skip(":");
  parts.second = reader.number(2);
  reader.skip(" GMT");
  return reader.at_end() ? seconds_of(parts) : std::nullopt;
}

std::optional<double> time_of_iso_date(std::string_view text) {
  DateReader reader(text);
  DateParts parts;
  parts.year = reader.number(4);
  reader.skip("-");
  parts.month = reader.number(2);
  reader.skip("-");
  parts.day = reader.number(2);
  reader.skip("T");
  parts.hour = reader.number(2);
  reader.skip(":");
  parts.minute = reader.number(2);
  reader.skip(":");
  parts.second = reader.number(2);
  const std::string_view fraction = reader.take_until('Z');  // whole seconds suffice
  reader.skip("Z");
  if (!reader.at_end()) return std::nullopt;
  if (!fraction.empty() && (fraction.front() != '.' || !whole_number<std::uint64_t>(fraction.substr(1)))) {
    return std::nullopt;
  }
  return seconds_of(parts);
}

std::string compact_date(std::int64_t time) {
  const std::chrono::sys_seconds moment{std::chrono::seconds(time)};
  const auto days = std::chrono::floor<std::chrono::days>(moment);
  const std::chrono::year_month_day date(days);
  const std::chrono::hh_mm_ss clock(moment - days);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), clock.hours().count(),
                     clock.minutes().count(), clock.seconds().count());
}

}  // namespace cairn::storage
