// mpi_collectives: the ranks of an MPI communicator as Collectives. This header is not part of cairn.h: a program that
// includes the header needs MPI 3.0 or later; Cairn's library does not.
//
//     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
//     auto ranks = cairn::mpi_collectives(MPI_COMM_WORLD).value();
//     cairn::SaveOptions options;
//     options.collectives = ranks.get();
//     cairn::save("checkpoints/step-1000", state, options).value();
//
// Threads: Cairn's own threads never call MPI. MPI is called by the thread that calls Cairn (save, load,
// AsyncCheckpointer::save), that calls mpi_collectives(), or that destroys the result. MPI_THREAD_FUNNELED is enough if
// this is always the thread that has initialised MPI, and MPI_THREAD_SERIALIZED if no two threads call MPI at a time.
//
// Errors: an error code of MPI becomes kUnavailable, with MPI's text. MPI has no time-outs: if a rank is gone, or does
// not take part, the calls of the other ranks end when MPI or its launcher ends the job.
#pragma once

#include <cairn/collectives.h>
#include <cairn/result.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

namespace mpi {

// MPI counts the elements of a call in an int. Longer messages take several calls.
inline constexpr std::size_t kCallBytesMax = std::size_t{1} << 30;

inline Result<void> checked(int code, const char* call) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  return Error(ErrorCode::kUnavailable,
               std::string(call) + " failed: " + std::string(text.data(), static_cast<std::size_t>(length)));
}

// A communicator of Cairn's own: no message meets a message of the program. Freed by the destructor, which is
// collective in MPI; never freed after a failed call, because the remaining ranks may not come.
class Communicator {
 public:
  using Messages = std::vector<std::string>;

  // Takes over `own`, whose errors are returned.
  Communicator(MPI_Comm own, int rank, int size) : own_(own), rank_(rank), size_(size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    subgroups_.clear();
    int is_over = 0;
    if (!has_failed_ && MPI_Finalized(&is_over) == MPI_SUCCESS && is_over == 0) (void)MPI_Comm_free(&own_);
  }

  // Every rank of `given` calls make().
  static Result<std::shared_ptr<Communicator>> make(MPI_Comm given) {
    int is_initialized = 0;
    int is_over = 0;
    CAIRN_TRY(checked(MPI_Initialized(&is_initialized), "MPI_Initialized"));
    CAIRN_TRY(checked(MPI_Finalized(&is_over), "MPI_Finalized"));
    if (is_initialized == 0 || is_over != 0 || given == MPI_COMM_NULL) {
      return Error(ErrorCode::kInvalidArgument, "no MPI communicator: call MPI_Init before, and MPI_Finalize after");
    }
    int is_between = 0;
    CAIRN_TRY(checked(MPI_Comm_test_inter(given, &is_between), "MPI_Comm_test_inter"));
    if (is_between != 0) return Error(ErrorCode::kInvalidArgument, "an MPI intercommunicator has no common ranks");
    MPI_Comm own = MPI_COMM_NULL;
    CAIRN_TRY(checked(MPI_Comm_dup(given, &own), "MPI_Comm_dup"));
    return of(own);
  }

  static CollectiveCalls calls(std::shared_ptr<Communicator> it) {
    CollectiveCalls calls;
    calls.rank = static_cast<std::size_t>(it->rank_);
    calls.size = static_cast<std::size_t>(it->size_);
    calls.gather = [it](std::string bytes, std::size_t root) { return it->gather(bytes, static_cast<int>(root)); };
    calls.scatter = [it](Messages bytes, std::size_t root) { return it->scatter(bytes, static_cast<int>(root)); };
    calls.broadcast = [it](std::string bytes, std::size_t root) {
      return it->broadcast(std::move(bytes), static_cast<int>(root));
    };
    calls.all_gather = [it](std::string bytes) { return it->gather(bytes, kAllRanks); };
    calls.barrier = [it] { return it->call(MPI_Barrier(it->own_), "MPI_Barrier"); };
    calls.smallest = [it](std::vector<std::int64_t> numbers) { return it->smallest(std::move(numbers)); };
    calls.broadcast_in_place = [it](std::span<std::byte> bytes, std::size_t root) {
      return it->broadcast_bytes(bytes.data(), bytes.size(), static_cast<int>(root));
    };
    calls.subgroup = [it](const std::vector<std::size_t>& ranks) { return it->subgroup(ranks); };
    return calls;
  }

 private:
  static constexpr int kAllRanks = -1;  // the root of a gather to every rank
  static constexpr std::uint64_t kRefused = std::numeric_limits<std::uint64_t>::max();  // in place of a length

  static Result<std::shared_ptr<Communicator>> of(MPI_Comm own) {
    int rank = 0;
    int size = 0;
    CAIRN_TRY(checked(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    CAIRN_TRY(checked(MPI_Comm_rank(own, &rank), "MPI_Comm_rank"));
    CAIRN_TRY(checked(MPI_Comm_size(own, &size), "MPI_Comm_size"));
    return std::make_shared<Communicator>(own, rank, size);
  }

  Result<void> call(int code, const char* name) {
    if (code != MPI_SUCCESS) has_failed_ = true;
    return checked(code, name);
  }

  std::size_t count() const { return static_cast<std::size_t>(size_); }
  bool receives(int root) const { return root == rank_ || root == kAllRanks; }
  // The greatest part of each rank's message in one call that has parts of all ranks.
  std::size_t part_bytes_max() const { return std::max<std::size_t>(1, kCallBytesMax / count()); }

  Result<Messages> gather(const std::string& mine, int root) {
    std::uint64_t length = mine.size();
    std::uint64_t longest = 0;
    std::vector<std::uint64_t> lengths(receives(root) ? count() : 0);
    CAIRN_TRY(call(MPI_Allreduce(&length, &longest, 1, MPI_UINT64_T, MPI_MAX, own_), "MPI_Allreduce"));
    CAIRN_TRY(call(root == kAllRanks
                       ? MPI_Allgather(&length, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, own_)
                       : MPI_Gather(&length, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, root, own_),
                   "MPI_Gather"));
    Messages messages(lengths.size());
    for (std::size_t begin = 0; begin < longest; begin += part_bytes_max()) {
      CAIRN_TRY(gather_part(mine, begin, lengths, messages, root));
    }
    return messages;
  }

  // Appends the bytes from `begin` on of each message, at most part_bytes_max().
  Result<void> gather_part(const std::string& mine, std::size_t begin, const std::vector<std::uint64_t>& lengths,
                           Messages& messages, int root) {
    const Parts parts(lengths, begin, part_bytes_max());
    std::string received(parts.bytes, '\0');
    const char* const sent = mine.data() + std::min(begin, mine.size());
    const int bytes = Parts::bytes_of(mine.size(), begin, part_bytes_max());
    CAIRN_TRY(call(root == kAllRanks ? MPI_Allgatherv(sent, bytes, MPI_BYTE, received.data(), parts.counts.data(),
                                                      parts.places.data(), MPI_BYTE, own_)
                                     : MPI_Gatherv(sent, bytes, MPI_BYTE, received.data(), parts.counts.data(),
                                                   parts.places.data(), MPI_BYTE, root, own_),
                   "MPI_Gatherv"));
    for (std::size_t i = 0; i < messages.size(); ++i) {
      messages[i].append(received, static_cast<std::size_t>(parts.places[i]),
                         static_cast<std::size_t>(parts.counts[i]));
    }
    return {};
  }

  Result<std::string> scatter(const Messages& messages, int root) {
    std::vector<std::uint64_t> lengths;
    if (root == rank_) {
      for (const std::string& message : messages) lengths.push_back(message.size());
      if (messages.size() != count()) lengths.assign(count(), kRefused);
    }
    // The length of this rank's message, and the greatest length.
    std::uint64_t length = 0;
    std::uint64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    CAIRN_TRY(call(MPI_Scatter(lengths.data(), 1, MPI_UINT64_T, &length, 1, MPI_UINT64_T, root, own_), "MPI_Scatter"));
    CAIRN_TRY(call(MPI_Bcast(&longest, 1, MPI_UINT64_T, root, own_), "MPI_Bcast"));
    if (longest == kRefused) {
      return Error(root == rank_ ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
                   "the root of a scatter had a wrong number of messages");
    }
    std::string mine;
    for (std::size_t begin = 0; begin < longest; begin += part_bytes_max()) {
      const Parts parts(lengths, begin, part_bytes_max());
      std::string sent;
      sent.reserve(parts.bytes);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        if (parts.counts[i] > 0) sent.append(messages[i], begin, static_cast<std::size_t>(parts.counts[i]));
      }
      const int bytes = Parts::bytes_of(length, begin, part_bytes_max());
      const std::size_t place = mine.size();
      mine.resize(place + static_cast<std::size_t>(bytes));
      CAIRN_TRY(call(MPI_Scatterv(sent.data(), parts.counts.data(), parts.places.data(), MPI_BYTE, mine.data() + place,
                                  bytes, MPI_BYTE, root, own_),
                     "MPI_Scatterv"));
    }
    return mine;
  }

  Result<std::string> broadcast(std::string bytes, int root) {
    std::uint64_t length = bytes.size();
    CAIRN_TRY(call(MPI_Bcast(&length, 1, MPI_UINT64_T, root, own_), "MPI_Bcast"));
    bytes.resize(length);
    CAIRN_TRY(broadcast_bytes(bytes.data(), bytes.size(), root));
    return bytes;
  }

  Result<void> broadcast_bytes(void* data, std::size_t bytes, int root) {
    for (std::size_t begin = 0; begin < bytes; begin += kCallBytesMax) {
      const int part = static_cast<int>(std::min(kCallBytesMax, bytes - begin));
      CAIRN_TRY(call(MPI_Bcast(static_cast<std::byte*>(data) + begin, part, MPI_BYTE, root, own_), "MPI_Bcast"));
    }
    return {};
  }

  // A reduction of a fixed size holds the count twice, as n and -n, and the first numbers: ranks with different counts
  // learn of the difference without another call.
  Result<std::vector<std::int64_t>> smallest(std::vector<std::int64_t> numbers) {
    constexpr std::size_t kFirst = 14;
    std::array<std::int64_t, kFirst + 2> first{};
    const auto count = static_cast<std::int64_t>(numbers.size());
    first[kFirst] = count;
    first[kFirst + 1] = -count;
    const std::size_t held = std::min(numbers.size(), kFirst);
    std::copy_n(numbers.begin(), held, first.begin());
    const auto first_count = static_cast<int>(first.size());
    CAIRN_TRY(
        call(MPI_Allreduce(MPI_IN_PLACE, first.data(), first_count, MPI_INT64_T, MPI_MIN, own_), "MPI_Allreduce"));
    if (first[kFirst] != -first[kFirst + 1]) {
      return Error(ErrorCode::kInvalidArgument, "the ranks gave different numbers of numbers")
          .expected(std::to_string(-first[kFirst + 1]))
          .actual(std::to_string(first[kFirst]));
    }
    std::copy_n(first.begin(), held, numbers.begin());
    for (std::size_t begin = kFirst; begin < numbers.size(); begin += kCallBytesMax) {
      const int part = static_cast<int>(std::min(kCallBytesMax, numbers.size() - begin));
      CAIRN_TRY(
          call(MPI_Allreduce(MPI_IN_PLACE, numbers.data() + begin, part, MPI_INT64_T, MPI_MIN, own_), "MPI_Allreduce"));
    }
    return numbers;
  }

  Result<Collectives*> subgroup(const std::vector<std::size_t>& ranks) {
    std::unique_ptr<Collectives>& kept = subgroups_[ranks];
    if (kept) return kept.get();
    const std::vector<int> members(ranks.begin(), ranks.end());
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm own = MPI_COMM_NULL;
    CAIRN_TRY(call(MPI_Comm_group(own_, &all), "MPI_Comm_group"));
    Result<void> made =
        call(MPI_Group_incl(all, static_cast<int>(members.size()), members.data(), &some), "MPI_Group_incl");
    if (made) made = call(MPI_Comm_create_group(own_, some, 0, &own), "MPI_Comm_create_group");
    (void)MPI_Group_free(&all);
    if (some != MPI_GROUP_NULL) (void)MPI_Group_free(&some);
    CAIRN_TRY(std::move(made));
    CAIRN_TRY_ASSIGN(std::shared_ptr<Communicator> group, of(own));
    CAIRN_TRY_ASSIGN(kept, make_collectives(calls(std::move(group))));
    return kept.get();
  }

  // The parts of all messages in a call. Empty where `lengths` is empty.
  struct Parts {
    Parts(const std::vector<std::uint64_t>& lengths, std::size_t begin, std::size_t part_bytes_max) {
      for (const std::uint64_t length : lengths) {
        counts.push_back(bytes_of(length, begin, part_bytes_max));
        places.push_back(static_cast<int>(bytes));
        bytes += static_cast<std::size_t>(counts.back());
      }
    }
    static int bytes_of(std::uint64_t length, std::size_t begin, std::size_t part_bytes_max) {
      return length <= begin ? 0 : static_cast<int>(std::min<std::uint64_t>(length - begin, part_bytes_max));
    }
    std::vector<int> counts;
    std::vector<int> places;
    std::size_t bytes = 0;
  };

  MPI_Comm own_;
  int rank_;
  int size_;
  bool has_failed_ = false;
  std::map<std::vector<std::size_t>, std::unique_ptr<Collectives>> subgroups_;  // freed before `own_`
};

}  // namespace mpi

// The ranks of `communicator`, which stays the program's: Cairn works on a duplicate. Every rank of the communicator
// calls mpi_collectives(), and destroys the result before MPI_Finalize. kInvalidArgument: MPI is not initialised, or
// `communicator` is null or an intercommunicator.
inline Result<std::unique_ptr<Collectives>> mpi_collectives(MPI_Comm communicator) {
  CAIRN_TRY_ASSIGN(std::shared_ptr<mpi::Communicator> own, mpi::Communicator::make(communicator));
  return make_collectives(mpi::Communicator::calls(std::move(own)));
}

}  // namespace cairn
