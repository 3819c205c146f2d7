#include <cairn/collectives.h>

#include <fmt/core.h>

#include <exception>
#include <utility>

#include "coordination/call_guard.h"

namespace cairn {
namespace {

using Messages = std::vector<std::string>;

class CallbackCollectives final : public Collectives {
 public:
  explicit CallbackCollectives(CollectiveCalls calls) : calls_(std::move(calls)), guard_(calls_.size) {}

  std::size_t rank() const override { return calls_.rank; }
  std::size_t size() const override { return calls_.size; }

  Result<Messages> gather(std::string bytes, std::size_t root) override {
    return run("gather", root, [&]() -> Result<Messages> {
      CAIRN_TRY_ASSIGN(Messages messages, calls_.gather(std::move(bytes), root));
      return checked(std::move(messages), root == calls_.rank ? calls_.size : 0);
    });
  }
  Result<std::string> scatter(Messages bytes, std::size_t root) override {
    return run("scatter", root, [&] { return calls_.scatter(std::move(bytes), root); });
  }
  Result<std::string> broadcast(std::string bytes, std::size_t root) override {
    return run("broadcast", root, [&] { return calls_.broadcast(std::move(bytes), root); });
  }
  Result<Messages> all_gather(std::string bytes) override {
    return run("all_gather", 0, [&]() -> Result<Messages> {
      CAIRN_TRY_ASSIGN(Messages messages, calls_.all_gather(std::move(bytes)));
      return checked(std::move(messages), calls_.size);
    });
  }
  Result<void> barrier() override {
    return run("barrier", 0, [&] { return calls_.barrier(); });
  }
  Result<std::vector<std::int64_t>> smallest(std::vector<std::int64_t> numbers) override {
    if (!calls_.smallest) return Collectives::smallest(std::move(numbers));
    return run("smallest", 0, [&]() -> Result<std::vector<std::int64_t>> {
      const std::size_t count = numbers.size();
      CAIRN_TRY_ASSIGN(std::vector<std::int64_t> result, calls_.smallest(std::move(numbers)));
      if (result.size() == count) return result;
      return Error(ErrorCode::kInvalidArgument, "the function returned a wrong number of numbers")
          .expected(fmt::format("{}", count))
          .actual(fmt::format("{}", result.size()));
    });
  }
  Result<void> broadcast_in_place(std::span<std::byte> bytes, std::size_t root) override {
    if (!calls_.broadcast_in_place) return Collectives::broadcast_in_place(bytes, root);
    return run("broadcast_in_place", root, [&] { return calls_.broadcast_in_place(bytes, root); });
  }
  Result<Collectives*> subgroup(const std::vector<std::size_t>& ranks) override {
    if (!calls_.subgroup) return Collectives::subgroup(ranks);
    return run("subgroup", 0, [&] { return calls_.subgroup(ranks); });
  }

 private:
  // Runs the work under the guard; an exception of the work becomes an error.
  template <typename Work>
  auto run(const char* name, std::size_t root, Work&& work) -> decltype(work()) {
    return guard_.run(root, [&]() -> decltype(work()) {
      try {
        return work();
      } catch (const std::exception& exception) {
        return Error(ErrorCode::kUnavailable, fmt::format("{} failed: {}", name, exception.what()));
      } catch (...) {
        return Error(ErrorCode::kUnavailable, fmt::format("{} failed", name));
      }
    });
  }

  // Checks the result of a function of the caller, which may be wrong.
  static Result<Messages> checked(Messages messages, std::size_t count) {
    if (messages.size() == count) return messages;
    return Error(ErrorCode::kInvalidArgument, "the function returned a wrong number of messages")
        .expected(fmt::format("{}", count))
        .actual(fmt::format("{}", messages.size()));
  }

  CollectiveCalls calls_;
  coordination::CallGuard guard_;
};

}  // namespace

Result<std::unique_ptr<Collectives>> make_collectives(CollectiveCalls calls) {
  if (calls.rank >= calls.size) {
    return Error(ErrorCode::kInvalidArgument, "the rank is not one of the group")
        .expected(fmt::format("less than {}", calls.size))
        .actual(fmt::format("{}", calls.rank));
  }
  if (!calls.gather || !calls.scatter || !calls.broadcast || !calls.all_gather || !calls.barrier) {
    return Error(ErrorCode::kInvalidArgument, "a function of the collectives is missing");
  }
  return std::unique_ptr<Collectives>(std::make_unique<CallbackCollectives>(std::move(calls)));
}

}  // namespace cairn
