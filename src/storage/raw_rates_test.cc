#include "storage/raw_rates.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "os/fd.h"
#include "storage/testing/refused_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

class RawRates : public testing::Test {
 protected:
  ScratchDirectory scratch_;
  os::Fd file_{::open((scratch_.path() / "raw").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  RawBuffers buffers_;
};

TEST_F(RawRates, WholeRequestsAreWrittenAndRead) {
  const RawRequests requests{.bytes = 3 * kRawRequestBytes + 5};
  EXPECT_EQ(write_raw(file_.get(), buffers_, requests).value().bytes, 3 * kRawRequestBytes);
  const RawTransfer read = read_raw(file_.get(), buffers_, requests).value();
  EXPECT_EQ(read.bytes, 3 * kRawRequestBytes);
  EXPECT_GT(read.rate(), 0);
}

TEST_F(RawRates, NoRequestStartsAfterTheTime) {
  const RawRequests requests{.bytes = kRawRequestBytes, .time_max = std::chrono::milliseconds(0)};
  const RawTransfer written = write_raw(file_.get(), buffers_, requests).value();
  EXPECT_EQ(written.bytes, 0U);
  EXPECT_EQ(written.rate(), 0);
}

TEST_F(RawRates, RefuseAShortFileAndAFullDisk) {
  const RawRequests requests{.bytes = kRawRequestBytes, .name = "raw"};
  EXPECT_EQ(read_raw(file_.get(), buffers_, requests).error().code(), ErrorCode::kUnavailable);
  ErrorCode code = ErrorCode::kNoSpace;
  run_with_refused({{SYS_fallocate, ENOSPC}},
                   [&] { code = write_raw(file_.get(), buffers_, requests).error().code(); });
  EXPECT_EQ(code, ErrorCode::kNoSpace);
}

TEST_F(RawRates, AnInterruptionEndsTheTransfer) {
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 30;  // a hole, whose reading takes seconds
  ASSERT_EQ(ftruncate(file_.get(), static_cast<off_t>(kBytes)), 0);
  const RawRequests requests{.bytes = kBytes, .interrupted = [] { return true; }};
  EXPECT_EQ(read_raw(file_.get(), buffers_, requests).error().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace cairn::storage
