#include "device/registration.h"

#include <gtest/gtest.h>

#include <fake_cuda/fake_cuda.h>
#include "device/bounce_buffers.h"
#include "os/memory_file.h"

namespace cairn::device {
namespace {

constexpr std::uint64_t kPiece = Registration::kPieceBytes;

class RegistrationTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset();
    memory_.resize(2 * kPiece + 4096).value();
  }
  void TearDown() override { fake_cuda_reset(); }

  const std::size_t before_ = fake_cuda_registered_bytes();
  Driver& driver_ = *driver_of(DeviceKind::kCuda).value();
  os::MemoryFile memory_ = os::MemoryFile::create("test").value();
};

TEST_F(RegistrationTest, RegistersPiecesFromTheFront) {
  Registration registration(driver_, 0, memory_.bytes());
  EXPECT_FALSE(registration.covers(1));
  EXPECT_TRUE(registration.register_next().value());
  EXPECT_TRUE(registration.covers(kPiece));
  EXPECT_FALSE(registration.covers(kPiece + 1));
  registration.register_all({}, 0).value();
  EXPECT_TRUE(registration.covers(memory_.bytes().size()));
  EXPECT_FALSE(registration.register_next().value());
  EXPECT_EQ(fake_cuda_registered_bytes() - before_, memory_.bytes().size());
}

TEST_F(RegistrationTest, WithdrawEndsForGood) {
  Registration registration(driver_, 0, memory_.bytes());
  registration.register_next().value();
  registration.withdraw();
  EXPECT_FALSE(registration.covers(1));
  EXPECT_EQ(fake_cuda_registered_bytes(), before_);
  EXPECT_FALSE(registration.register_next().value());
  EXPECT_EQ(fake_cuda_registered_bytes(), before_);
}

TEST_F(RegistrationTest, RefusalKeepsEarlierPieces) {
  Registration registration(driver_, 0, memory_.bytes());
  fake_cuda_fail("cuMemHostRegister_v2", 2, 2, 0);
  EXPECT_EQ(registration.register_all({}, 0).error().code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(registration.covers(kPiece));
  EXPECT_FALSE(registration.covers(kPiece + 1));
  EXPECT_TRUE(registration.refusal().has_value());
  EXPECT_FALSE(registration.register_next());
}

TEST_F(RegistrationTest, StopsBetweenTwoPieces) {
  Registration registration(driver_, 0, memory_.bytes());
  int questions = 0;
  registration.register_all([&] { return ++questions == 2; }, 1).value();
  EXPECT_TRUE(registration.covers(kPiece));
  EXPECT_FALSE(registration.covers(kPiece + 1));
}

TEST_F(RegistrationTest, ABounceBufferIsUsedAgain) {
  BounceBuffers buffers(driver_, 1);
  const std::byte* first = nullptr;
  {
    const auto loan = buffers.borrow().value();
    first = loan.bytes().data();
    EXPECT_EQ(fake_cuda_registered_bytes() - before_, BounceBuffers::kBufferBytes);
    EXPECT_NE(buffers.borrow().value().bytes().data(), first);
  }
  EXPECT_EQ(fake_cuda_calls("cuMemHostRegister_v2"), 2);
  (void)buffers.borrow().value();
  EXPECT_EQ(fake_cuda_calls("cuMemHostRegister_v2"), 2);
}

TEST_F(RegistrationTest, LendsAnUnregisteredBuffer) {
  BounceBuffers buffers(driver_, 1);
  fake_cuda_fail("cuMemHostRegister_v2", 1, 2, 1);
  EXPECT_EQ(buffers.borrow().value().bytes().size(), BounceBuffers::kBufferBytes);
  EXPECT_TRUE(buffers.refusal().has_value());
}

}  // namespace
}  // namespace cairn::device
