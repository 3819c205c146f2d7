#include "commit/dcp_names.h"

#include <gtest/gtest.h>

namespace cairn::commit {
namespace {

TEST(DcpNames, AreMetadataAndDataFileNames) {
  for (const char* name : {".metadata", "__0.metadata", "__12.metadata"}) {
    EXPECT_TRUE(is_metadata_name(name)) << name;
    EXPECT_TRUE(is_dcp_file_name(name)) << name;
    EXPECT_FALSE(is_data_file_name(name)) << name;
  }
  for (const char* name : {"__0_0.distcp", "__12_340000.distcp"}) {
    EXPECT_TRUE(is_data_file_name(name)) << name;
    EXPECT_TRUE(is_dcp_file_name(name)) << name;
    EXPECT_FALSE(is_metadata_name(name)) << name;
  }
}

TEST(DcpNames, AreNotTheNamesOfOtherFiles) {
  for (const char* name : {"", "dataset.metadata", "metadata", ".metadata.tmp", "notes.distcp", "__0.distcp",
                           "__.distcp", "__0_.distcp", "__0_x.distcp", "__0_0.distcp.bak", "_0_0.distcp"}) {
    EXPECT_FALSE(is_dcp_file_name(name)) << name;
  }
}

}  // namespace
}  // namespace cairn::commit
