// Rounds, numbered from 0. The keys of round r are notice/r, answer/r/RANK and agreed/r.
//
// 1. Notice. A rank with a request sets notice/r. Several ranks may do so: the value does not count.
// 2. Answer. A thread of every rank waits for notice/r. The thread sets answer/r/RANK: the first step whose end the
//    rank has not crossed, and the rank's requests. Reading that step, and crossing the end of a step, exclude each
//    other; from then on the rank crosses no end of a step until step 4.
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
// A call into the store that fails is made again. A rank that waits for step 1 warns after the deadline for an answer,
// and goes on to wait; a request that is older than the deadline is reported at each end of a step, however long the
// call takes. From step 2 to step 4 the protocol ends on the rank at the deadline, with a warning, and the next end of
// a step fails.
//
// A request that comes after the rank's answer waits for the next round. The next round may be agreed before the rank
// has come to the step of this one; both agreements are kept, in order. A rank may wait in step 4 while another rank is
// within a step and needs messages of the first: the first has sent them, because it has ended that step.
#include "run/step_agreement.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "core/whole_number.h"
#include "os/start_thread.h"

namespace cairn::run {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kCrossingPoll{50};
constexpr milliseconds kEndMax{5000};
constexpr milliseconds kFarewellMax{1000};
constexpr milliseconds kFirstPause{2};
constexpr int kPausesOfAnAnswer = 4;  // a rank looks after each: the least deadline
constexpr int kAnswersOfARound = 3;   // from the notice to the agreement a rank waits for so many deadlines at most
constexpr const char* kPurpose = "agreeing with the other ranks on a step to save or to stop";
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

// What the caller and the two threads share.
class StepAgreement::Rounds {
 public:
  explicit Rounds(AgreementGroup group) : group_(std::move(group)) {}

  static Result<void> start(const std::shared_ptr<Rounds>& rounds);
  void end();
  void request(Requests requests);
  Result<Requests> cross(std::uint64_t step, const std::function<bool()>& interrupted);

 private:
  struct Agreement {
    std::uint64_t step;
    Requests requests;
  };

  void post();
  void watch_to_the_end();
  void watch();
  void say_farewell();
  void count_thread(int change);
  Result<void> answer(std::uint64_t round);
  Result<void> decide(std::uint64_t round);
  Result<std::vector<std::string>> await(const std::vector<std::string>& keys, milliseconds deadline);
  bool has_ended();  // whether a rank has
  void warn(const Error& error) const;
  void pause(milliseconds length);
  Error missing(const std::vector<std::string>& keys);
  void forget(std::uint64_t round);
  void fail(const Error& error);
  void end_with(Error failure);
  Error hanging() const;
  std::string key(const char* name, std::uint64_t round) const;
  std::string answer_key(std::uint64_t round, std::size_t rank) const;

  // A client of the store may have lost its connection, and makes another.
  template <typename Call>
  auto ask(Call&& call) -> decltype(call()) {
    const Clock::time_point end = Clock::now() + group_.deadline;
    for (milliseconds next = kFirstPause;; next = std::min(2 * next, longest_pause(group_.size))) {
      auto answer = call();
      if (answer || stop_.stop_requested() || Clock::now() > end) return answer;
      pause(next);
    }
  }
  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) {
    return ask([&] { return group_.store->get(keys); });
  }
  Result<void> set(const std::string& key, const std::string& value) {
    return ask([&] { return group_.store->set(key, value); });
  }

  const AgreementGroup group_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_lost_ = false;          // of the watcher: the store does not answer
  int threads_ = 0;               // that run
  Requests pending_ = 0;          // of this rank, not answered yet
  Requests answered_ = 0;         // in the open round
  Clock::time_point since_;       // when the rank asked for `pending_`, or when the round before ended
  Clock::time_point opened_;      // when the open round began
  std::uint64_t next_ = 0;        // the first step whose end this rank has not crossed
  std::uint64_t round_ = 0;       // the round whose notice the watcher waits for, or that is open
  bool is_open_ = false;          // the rank has answered, and there is no agreement yet
  std::deque<Agreement> agreed_;  // whose steps this rank has not crossed
  std::optional<Error> failure_;  // the protocol has ended
};

StepAgreement::StepAgreement(std::shared_ptr<Rounds> rounds) : rounds_(std::move(rounds)) {}

StepAgreement::~StepAgreement() { rounds_->end(); }

Result<std::unique_ptr<StepAgreement>> StepAgreement::start(AgreementGroup group) {
  const bool is_alone = group.store == nullptr;
  group.deadline = std::max(group.deadline, kPausesOfAnAnswer * longest_pause(group.size));
  std::unique_ptr<StepAgreement> agreement(new StepAgreement(std::make_shared<Rounds>(std::move(group))));
  if (!is_alone) CAIRN_TRY(Rounds::start(agreement->rounds_));
  return agreement;
}

void StepAgreement::request(Requests requests) { rounds_->request(requests); }

Result<Requests> StepAgreement::cross(std::uint64_t step, const std::function<bool()>& interrupted) {
  return rounds_->cross(step, interrupted);
}

// The threads keep the object, and are left behind in a call that hangs.
Result<void> StepAgreement::Rounds::start(const std::shared_ptr<Rounds>& rounds) {
  const auto start_one = [&rounds](const char* purpose, auto work) -> Result<void> {
    rounds->count_thread(1);
    const auto run = [rounds, work] {
      work(*rounds);
      rounds->count_thread(-1);
    };
    Result<std::thread> thread = os::start_thread<std::thread>(purpose, run);
    if (!thread) {
      rounds->count_thread(-1);
      return std::move(thread).error();
    }
    thread->detach();
    return {};
  };
  CAIRN_TRY(start_one("to announce a stop", [](Rounds& self) { self.post(); }));
  return start_one("to hear of a stop", [](Rounds& self) { self.watch_to_the_end(); });
}

void StepAgreement::Rounds::end() {
  stop_.request_stop();
  std::unique_lock lock(mutex_);
  changed_.notify_all();
  changed_.wait_for(lock, kEndMax, [this] { return threads_ == 0; });
}

void StepAgreement::Rounds::count_thread(int change) {
  const std::lock_guard lock(mutex_);
  threads_ += change;
  changed_.notify_all();
}

void StepAgreement::Rounds::watch_to_the_end() {
  watch();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, stop_.get_token(), [this] { return failure_.has_value(); });
    if (failure_) return;
  }
  say_farewell();
}

// A store that has ended has no rank left to read it.
void StepAgreement::Rounds::say_farewell() {
  const Clock::time_point end = Clock::now() + kFarewellMax;
  while (!group_.store->set(answer_key(round_, group_.rank), encode(kNever, 0))) {
    if (Clock::now() > end) return;
    std::this_thread::sleep_for(kCrossingPoll);  // a client makes another connection
  }
  if (group_.rank != 0) return;
  const auto agreed = group_.store->get({key("agreed", round_)});
  if (agreed && !*agreed) (void)group_.store->set(key("agreed", round_), encode(kNever, 0));
}

void StepAgreement::Rounds::request(Requests requests) {
  const std::lock_guard lock(mutex_);
  if (pending_ == 0) since_ = Clock::now();
  pending_ |= requests;
  changed_.notify_all();
}

Result<Requests> StepAgreement::Rounds::cross(std::uint64_t step, const std::function<bool()>& interrupted) {
  std::unique_lock lock(mutex_);
  while (is_open_ && !failure_) {  // until (4)
    changed_.wait_for(lock, kCrossingPoll);
    lock.unlock();  // a handler of a signal may call request()
    const bool is_interrupted = interrupted && interrupted();
    lock.lock();
    if (is_interrupted) return Error(ErrorCode::kCancelled, "interrupted while the ranks agree on a step");
    if (is_open_ && Clock::now() - opened_ > kAnswersOfARound * group_.deadline) end_with(hanging());
  }
  next_ = step + 1;
  if (std::exchange(is_open_, false)) return *failure_;
  Requests due = 0;
  if (group_.store == nullptr) due = std::exchange(pending_, 0);
  for (; !agreed_.empty() && agreed_.front().step <= step; agreed_.pop_front()) due |= agreed_.front().requests;
  if (pending_ != 0 && (failure_ || Clock::now() - since_ > group_.deadline)) due |= kUnanswered;
  return due;
}

// A call into the store does not return, or the store lost the keys.
Error StepAgreement::Rounds::hanging() const {
  return Error(ErrorCode::kUnavailable, "the store of the process group does not answer").while_doing(kPurpose);
}

void StepAgreement::Rounds::post() {
  std::unique_lock lock(mutex_);
  std::optional<std::uint64_t> posted;
  while (changed_.wait(lock, stop_.get_token(), [&] { return pending_ != 0 && !is_open_ && posted != round_; })) {
    posted = round_;
    const std::string notice = key("notice", round_);
    lock.unlock();
    const Result<void> announced = set(notice, std::to_string(group_.rank));  // (1)
    if (!announced) pause(longest_pause(group_.size));
    lock.lock();
    if (!announced) posted.reset();
  }
}

void StepAgreement::Rounds::watch() {
  while (!stop_.stop_requested()) {
    const std::uint64_t round = round_;
    const auto notice = get({key("notice", round)});  // (2)
    if (!notice && !is_lost_) warn(notice.error());
    is_lost_ = !notice;
    if (!notice || !*notice) {
      pause(longest_pause(group_.size));
      continue;
    }
    const Result<void> agreed = answer(round);
    if (stop_.stop_requested()) return;
    if (!agreed) return fail(agreed.error());
    if (has_ended()) return;
    if (round > 0 && group_.rank == 0) forget(round - 1);  // (5)
  }
}

Result<void> StepAgreement::Rounds::answer(std::uint64_t round) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;  // cross() has told the caller, and no longer waits
    is_open_ = true;
    opened_ = Clock::now();
    answered_ = std::exchange(pending_, 0);
    text = encode(next_, answered_);
  }
  CAIRN_TRY(set(answer_key(round, group_.rank), text));  // (2)
  if (group_.rank == 0) CAIRN_TRY(decide(round));
  // Rank 0 gives up first, and its text names the rank that is missing.
  const milliseconds deadline = 2 * group_.deadline;
  CAIRN_TRY_ASSIGN(const std::vector<std::string> texts, await({key("agreed", round)}, deadline));
  CAIRN_TRY_ASSIGN(const auto agreed, decode(texts.front()));
  const std::lock_guard lock(mutex_);  // (4)
  if (failure_) return *failure_;
  answered_ = 0;
  agreed_.push_back({agreed.first, agreed.second});
  is_open_ = false;
  since_ = Clock::now();
  ++round_;
  changed_.notify_all();
  return {};
}

Result<void> StepAgreement::Rounds::decide(std::uint64_t round) {  // (3)
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank < group_.size; ++rank) keys.push_back(answer_key(round, rank));
  const Result<std::vector<std::string>> answers = await(keys, group_.deadline);
  if (!answers) {
    if (!stop_.stop_requested()) (void)set(key("agreed", round), "! " + answers.error().message());
    return answers.error();
  }
  std::uint64_t step = 0;
  Requests requests = 0;
  for (const std::string& text : *answers) {
    CAIRN_TRY_ASSIGN(const auto answered, decode(text));
    step = std::max(step, answered.first);
    requests |= answered.second;
  }
  return set(key("agreed", round), encode(step, requests));
}

Result<std::vector<std::string>> StepAgreement::Rounds::await(const std::vector<std::string>& keys,
                                                              milliseconds deadline) {
  const Clock::time_point end = Clock::now() + deadline;
  for (milliseconds next = kFirstPause;; next = std::min(2 * next, longest_pause(group_.size))) {
    CAIRN_TRY_ASSIGN(auto values, get(keys));
    if (values) return *std::move(values);
    if (stop_.stop_requested()) return Error(ErrorCode::kCancelled, "the manager is closed");
    if (Clock::now() > end) return missing(keys);
    pause(next);
  }
}

// The mutex is held. What this rank has asked for in the open round has no answer.
void StepAgreement::Rounds::end_with(Error failure) {
  failure_ = std::move(failure);
  pending_ |= std::exchange(answered_, 0);
  changed_.notify_all();
}

bool StepAgreement::Rounds::has_ended() {
  const std::lock_guard lock(mutex_);
  return !agreed_.empty() && agreed_.back().step == kNever;
}

void StepAgreement::Rounds::pause(milliseconds length) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, stop_.get_token(), length, [] { return false; });
}

Error StepAgreement::Rounds::missing(const std::vector<std::string>& keys) {
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

void StepAgreement::Rounds::forget(std::uint64_t round) {
  (void)group_.store->remove(key("notice", round));
  (void)group_.store->remove(key("agreed", round));
  for (std::size_t rank = 0; rank < group_.size; ++rank) (void)group_.store->remove(answer_key(round, rank));
}

void StepAgreement::Rounds::warn(const Error& error) const {
  if (group_.warn && !stop_.stop_requested()) group_.warn(Error(error).while_doing(kPurpose));
}

void StepAgreement::Rounds::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    end_with(Error(error).while_doing(kPurpose));
  }
  warn(error);
}

std::string StepAgreement::Rounds::key(const char* name, std::uint64_t round) const {
  return group_.prefix + name + "/" + std::to_string(round);
}

std::string StepAgreement::Rounds::answer_key(std::uint64_t round, std::size_t rank) const {
  return key("answer", round) + "/" + std::to_string(rank);
}

}  // namespace cairn::run
