// Rounds, numbered from 0. The keys of round r are notice/r, answer/r/RANK and agreed/r.
//
// 1. Notice. A rank with a request sets notice/r. Several ranks may do so: the value does not count.
// 2. Answer. A thread of every rank waits for notice/r. The thread sets answer/r/RANK: the first step whose end the
// rank
//    has not crossed, and the rank's requests. Reading that step, and crossing the end of a step, exclude each other;
//    from then on the rank crosses no end of a step until step 4.
// 3. Decision. Rank 0 waits for all answers and sets agreed/r: the largest step of the answers, and all requests. No
//    rank has crossed the end of that step, and every rank will come to it. If an answer is missing at the deadline,
//    agreed/r says so, and all ranks fail.
// 4. Agreement. The thread of every rank reads agreed/r. The rank may cross again, and takes the requests at the first
//    end of a step that is not before the agreed step. The thread goes on with round r + 1.
// 5. When all ranks have answered in round r + 1, all have read agreed/r: rank 0 removes the keys of round r.
//
// A rank that ends gives, as its last answer, a step that does not exist; rank 0 also agrees to that step, unless it
// has agreed to another one before. No rank comes to the step: a rank that is still within its last steps stops by
// itself, and waits for no answer.
//
// A request that comes after the rank's answer waits for the next round. The next round may be agreed before the rank
// has come to the step of this one; both agreements are kept, in order. A rank may wait in step 4 while another rank is
// within a step and needs messages of the first: the first has sent them, because it has ended that step.
#include "run/step_agreement.h"

#include <algorithm>
#include <utility>

#include "core/whole_number.h"
#include "os/start_thread.h"

namespace cairn::run {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{50};

constexpr milliseconds kFirstPause{2};
constexpr std::uint64_t kNever = UINT64_MAX;  // the step of a rank that has ended

// The longest pause between two looks into the store. Longer with many ranks: each look is a message to the store's
// server, 8,000 a second at most.
milliseconds longest_pause(std::size_t ranks) { return milliseconds(100 + ranks / 8); }

// "STEP REQUESTS", or "! TEXT" for a failure.
std::string encode(std::uint64_t step, Requests requests) {
  return std::to_string(step) + " " + std::to_string(requests);
}

Result<std::pair<std::uint64_t, Requests>> decode(const std::string& text) {
  if (text.starts_with("! ")) return Error(ErrorCode::kUnavailable, text.substr(2));
  const std::size_t space = text.find(' ');
  const auto step = whole_number<std::uint64_t>(std::string_view(text).substr(0, space));
  const auto requests =
      space == std::string::npos ? std::nullopt : whole_number<Requests>(std::string_view(text).substr(space + 1));
  if (!step || !requests) return Error(ErrorCode::kCorrupt, "the store holds '" + text + "' for an agreed step");
  return std::pair(*step, *requests);
}

}  // namespace

Result<std::unique_ptr<StepAgreement>> StepAgreement::start(AgreementGroup group) {
  std::unique_ptr<StepAgreement> agreement(new StepAgreement(std::move(group)));
  StepAgreement& self = *agreement;
  if (self.group_.store == nullptr) return agreement;
  const auto post = [&self](const std::stop_token& stop) { self.post(stop); };
  const auto watch = [&self](const std::stop_token& stop) { self.watch(stop); };
  CAIRN_TRY_ASSIGN(self.poster_, os::start_thread<std::jthread>("to announce a stop", post));
  CAIRN_TRY_ASSIGN(self.watcher_, os::start_thread<std::jthread>("to hear of a stop", watch));
  return agreement;
}

StepAgreement::~StepAgreement() {
  for (std::jthread* thread : {&poster_, &watcher_}) {
    thread->request_stop();
    if (thread->joinable()) thread->join();
  }
  if (group_.store == nullptr || failure_) return;
  // A store that has ended has no rank left to read it.
  if (!group_.store->set(answer_key(round_, group_.rank), encode(kNever, 0)) || group_.rank != 0) return;
  const auto agreed = group_.store->get({key("agreed", round_)});
  if (agreed && !*agreed) (void)group_.store->set(key("agreed", round_), encode(kNever, 0));
}

void StepAgreement::request(Requests requests) {
  const std::lock_guard lock(mutex_);
  pending_ |= requests;
  changed_.notify_all();
}

Result<Requests> StepAgreement::cross(std::uint64_t step, const std::function<bool()>& interrupted) {
  std::unique_lock lock(mutex_);
  while (is_open_ && !failure_) {  // until (4)
    changed_.wait_for(lock, kPoll);
    if (interrupted && interrupted())
      return Error(ErrorCode::kCancelled, "interrupted while the ranks agree on a step");
  }
  if (failure_ && (is_open_ || pending_ != 0)) return *failure_;
  next_ = step + 1;
  Requests due = 0;
  if (group_.store == nullptr) due = std::exchange(pending_, 0);
  for (; !agreed_.empty() && agreed_.front().step <= step; agreed_.pop_front()) due |= agreed_.front().requests;
  return due;
}

void StepAgreement::post(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  std::optional<std::uint64_t> posted;
  while (changed_.wait(lock, stop, [&] { return pending_ != 0 && !is_open_ && posted != round_; })) {
    posted = round_;
    const std::string notice = key("notice", round_);
    lock.unlock();
    const Result<void> set = group_.store->set(notice, std::to_string(group_.rank));  // (1)
    if (!set) return fail(set.error());
    lock.lock();
  }
}

void StepAgreement::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const std::uint64_t round = round_;
    const auto notice = group_.store->get({key("notice", round)});  // (2)
    if (!notice) return fail(notice.error());
    if (!*notice) {
      pause(stop, longest_pause(group_.size));
      continue;
    }
    const Result<void> agreed = answer(stop, round);
    if (stop.stop_requested()) return;
    if (!agreed) return fail(agreed.error());
    if (has_ended()) return;
    if (round > 0 && group_.rank == 0) forget(round - 1);  // (5)
  }
}

Result<void> StepAgreement::answer(const std::stop_token& stop, std::uint64_t round) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    text = encode(next_, std::exchange(pending_, 0));
  }
  CAIRN_TRY(group_.store->set(answer_key(round, group_.rank), text));  // (2)
  if (group_.rank == 0) CAIRN_TRY(decide(stop, round));
  // Rank 0 gives up first, and its text names the rank that is missing.
  const milliseconds deadline = 2 * group_.deadline;
  CAIRN_TRY_ASSIGN(const std::vector<std::string> texts, await(stop, {key("agreed", round)}, deadline));
  CAIRN_TRY_ASSIGN(const auto agreed, decode(texts.front()));
  const std::lock_guard lock(mutex_);  // (4)
  agreed_.push_back({agreed.first, agreed.second});
  is_open_ = false;
  ++round_;
  changed_.notify_all();
  return {};
}

Result<void> StepAgreement::decide(const std::stop_token& stop, std::uint64_t round) {  // (3)
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank < group_.size; ++rank) keys.push_back(answer_key(round, rank));
  const Result<std::vector<std::string>> answers = await(stop, keys, group_.deadline);
  if (!answers) {
    if (!stop.stop_requested()) (void)group_.store->set(key("agreed", round), "! " + answers.error().message());
    return answers.error();
  }
  std::uint64_t step = 0;
  Requests requests = 0;
  for (const std::string& text : *answers) {
    CAIRN_TRY_ASSIGN(const auto answered, decode(text));
    step = std::max(step, answered.first);
    requests |= answered.second;
  }
  return group_.store->set(key("agreed", round), encode(step, requests));
}

Result<std::vector<std::string>> StepAgreement::await(const std::stop_token& stop, const std::vector<std::string>& keys,
                                                      milliseconds deadline) {
  const Clock::time_point end = Clock::now() + deadline;
  for (milliseconds next = kFirstPause;; next = std::min(2 * next, longest_pause(group_.size))) {
    CAIRN_TRY_ASSIGN(auto values, group_.store->get(keys));
    if (values) return *std::move(values);
    if (stop.stop_requested()) return Error(ErrorCode::kCancelled, "the manager is closed");
    if (Clock::now() > end) return missing(keys);
    pause(stop, next);
  }
}

bool StepAgreement::has_ended() {
  const std::lock_guard lock(mutex_);
  return !agreed_.empty() && agreed_.back().step == kNever;
}

void StepAgreement::pause(const std::stop_token& stop, milliseconds length) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, stop, length, [] { return false; });
}

Error StepAgreement::missing(const std::vector<std::string>& keys) {
  std::string absent;
  std::size_t count = 0;
  constexpr std::size_t kNamedMax = 8;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto value = group_.store->get({keys[i]});
    if (value && *value) continue;
    if (++count <= kNamedMax) absent += (absent.empty() ? "" : ", ") + std::to_string(i);
  }
  const auto seconds = std::to_string(std::chrono::duration_cast<std::chrono::seconds>(group_.deadline).count());
  if (keys.size() == 1) {
    return {ErrorCode::kUnavailable, "rank 0 has not announced the agreed step within twice " + seconds + " s"};
  }
  return {ErrorCode::kUnavailable, "the ranks can't agree on a step: " + std::to_string(count) + " of " +
                                       std::to_string(keys.size()) + " ranks have not answered within " + seconds +
                                       " s (rank " + absent + (count > kNamedMax ? ", ...)" : ")")};
}

void StepAgreement::forget(std::uint64_t round) {
  (void)group_.store->remove(key("notice", round));
  (void)group_.store->remove(key("agreed", round));
  for (std::size_t rank = 0; rank < group_.size; ++rank) (void)group_.store->remove(answer_key(round, rank));
}

void StepAgreement::fail(Error error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error).while_doing("agreeing with the other ranks on a step to save or to stop");
  changed_.notify_all();
}

std::string StepAgreement::key(const char* name, std::uint64_t round) const {
  return group_.prefix + name + "/" + std::to_string(round);
}

std::string StepAgreement::answer_key(std::uint64_t round, std::size_t rank) const {
  return key("answer", round) + "/" + std::to_string(rank);
}

}  // namespace cairn::run
