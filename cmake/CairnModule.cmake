# Makes a library and a test program of a folder of src/.
include_guard()

# cairn_module(<name> [TEST_ONLY] [SOURCES <file>...] [TESTS <file>...] [EXHAUSTIVE <file>...]
#              [USES <module>...] [TEST_USES <module>...])
#
# Makes the static library cairn_<name> and, if the folder has tests, the program <name>_test. A folder in LAYERS uses the
# folders listed in LAYERS and gives no USES. SOURCES is by default every .cc below the folder except main.cc, TESTS every
# _test.cc: a new file needs no edit here. Subfolders that call cairn_module, for example testing/, are left out; their calls
# come first. A TEST_ONLY module is not part of the library cairn. The tests in EXHAUSTIVE try every place of a fault: they are
# the program <name>_exhaustive_test, which tries fewer with a sanitizer (tests/sanitizers.h), and which `./dev test` runs in
# release too. The thread sanitizer leaves them out.
function(cairn_module name)
  cmake_parse_arguments(PARSE_ARGV 1 MODULE "TEST_ONLY" "" "SOURCES;TESTS;EXHAUSTIVE;USES;TEST_USES")
  if(NOT MODULE_SOURCES)
    cairn_glob(MODULE_SOURCES "*.cc")
    list(FILTER MODULE_SOURCES EXCLUDE REGEX "(_test|/main)\\.cc$")
  endif()
  if(NOT MODULE_TESTS)
    cairn_glob(MODULE_TESTS "*_test.cc")
  endif()
  list(APPEND MODULE_USES ${CAIRN_USES_${name}})
  set_property(GLOBAL APPEND PROPERTY CAIRN_MODULE_FOLDERS ${CMAKE_CURRENT_SOURCE_DIR})

  list(TRANSFORM MODULE_USES PREPEND cairn_)
  list(TRANSFORM MODULE_TEST_USES PREPEND cairn_)
  if(MODULE_SOURCES)
    add_library(cairn_${name} STATIC ${MODULE_SOURCES})
    target_include_directories(cairn_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(cairn_${name} PUBLIC ${MODULE_USES} Threads::Threads PRIVATE fmt::fmt-header-only)
    if(NOT MODULE_TEST_ONLY)
      set_property(GLOBAL APPEND PROPERTY CAIRN_MODULES cairn_${name})
    endif()
  else()  # headers only
    add_library(cairn_${name} INTERFACE)
    target_include_directories(cairn_${name} INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(cairn_${name} INTERFACE ${MODULE_USES})
  endif()

  if(CAIRN_BUILD_TESTS AND MODULE_TESTS)
    list(TRANSFORM MODULE_EXHAUSTIVE PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    if(MODULE_EXHAUSTIVE)
      list(REMOVE_ITEM MODULE_TESTS ${MODULE_EXHAUSTIVE})
      cairn_test(${name}_exhaustive_test SOURCES ${MODULE_EXHAUSTIVE} USES cairn_${name} ${MODULE_TEST_USES})
      set_tests_properties(${name}_exhaustive_test PROPERTIES LABELS unsanitized COST 100)
      add_dependencies(unsanitized_tests ${name}_exhaustive_test)
    endif()
    cairn_test(${name}_test SOURCES ${MODULE_TESTS} USES cairn_${name} ${MODULE_TEST_USES})
  endif()
endfunction()

# The files of this folder that belong to no module below the folder.
function(cairn_glob result pattern)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${pattern})
  get_property(taken GLOBAL PROPERTY CAIRN_MODULE_FOLDERS)
  foreach(folder IN LISTS taken)
    string(FIND "${folder}" "${CMAKE_CURRENT_SOURCE_DIR}/" position)
    if(position EQUAL 0)
      list(FILTER files EXCLUDE REGEX "^${folder}/")
    endif()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# cairn_test(<name> SOURCES <file>... USES <target>...): makes a GoogleTest program and a ctest.
function(cairn_test name)
  cmake_parse_arguments(PARSE_ARGV 1 TEST "" "" "SOURCES;USES")
  add_executable(${name} ${TEST_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${TEST_USES} fmt::fmt-header-only GTest::gtest_main)
  # EXPECT_EQ expands to an if with an else.
  target_compile_options(${name} PRIVATE -Wno-dangling-else ${CAIRN_TEST_OPTIONS})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  list(LENGTH TEST_SOURCES cost)  # ctest starts the longest tests first
  # The time-out ends a test that hangs. The longest program takes two minutes with ThreadSanitizer on two idle cores.
  set_tests_properties(${name} PROPERTIES TIMEOUT 1800 COST ${cost})
  set_property(GLOBAL APPEND PROPERTY CAIRN_TEST_FILES ${TEST_SOURCES})
endfunction()

# Fails for a test file that no target builds: the file would look like coverage.
function(cairn_refuse_unbuilt_tests)
  get_property(built GLOBAL PROPERTY CAIRN_TEST_FILES)
  file(GLOB_RECURSE present CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*_test.cc ${PROJECT_SOURCE_DIR}/cli/*_test.cc
       ${PROJECT_SOURCE_DIR}/fuzz/*_test.cc ${PROJECT_SOURCE_DIR}/examples/*_test.cc)
  list(REMOVE_ITEM present ${built})
  if(present)
    message(FATAL_ERROR "on disk but in no target: ${present}")
  endif()
endfunction()
