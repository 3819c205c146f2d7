# find_package(cairn): the target cairn::cairn.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_library(ISAL_LIBRARY isal REQUIRED)
if(NOT TARGET ISAL::isal)
  add_library(ISAL::isal UNKNOWN IMPORTED)
  set_target_properties(ISAL::isal PROPERTIES IMPORTED_LOCATION ${ISAL_LIBRARY})
endif()
include(${CMAKE_CURRENT_LIST_DIR}/cairn-targets.cmake)
