#include "commit/save_ticket.h"

#include <gtest/gtest.h>

#include <string>

#include "format/manifest/commit_record.h"

namespace cairn::commit {
namespace {

TEST(SaveTicket, RefusesAJobOfNoPossibleYear) {
  SaveTicket ticket{{{1, 2}, {3, 4}, 5, manifest::kJobStartMax}, true};
  const auto decoded = decode_ticket(encode_ticket(ticket));
  ASSERT_TRUE(decoded) << decoded.error().what();
  EXPECT_EQ(decoded->identity.job_start, manifest::kJobStartMax);
  ++ticket.identity.job_start;
  const auto refused = decode_ticket(encode_ticket(ticket));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace cairn::commit
