# The built parts and the warnings. Every option is ON or OFF, never detected: two machines build equal parts.
include_guard()

option(CAIRN_BUILD_TESTS "Unit tests, the compiled examples and the replay of the fuzz corpora" ON)
option(CAIRN_BUILD_CLI "The command line tool" ON)
option(CAIRN_BUILD_PYTHON "The Python extension (needs nanobind)" OFF)
option(CAIRN_BUILD_FUZZ "libFuzzer targets (needs Clang)" OFF)
option(CAIRN_BUILD_BENCH "C++ benchmark programs" OFF)
option(CAIRN_MANYLINUX "Programs that run with the libstdc++ of GCC 11: for wheels" OFF)
# OFF by default, because a compiler newer than the presets' may warn more; the presets turn the option on.
option(CAIRN_WARNINGS_ARE_ERRORS "Refuse to build code with warnings" OFF)
set(CAIRN_SANITIZE "" CACHE STRING "Comma-separated list for -fsanitize=; empty for none")

# A test program spends its time in the library. Without optimisation its own sources compile twice as fast.
set(CAIRN_TEST_OPTIONS "" CACHE STRING "Compile options of the tests' own sources, after all others")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(CAIRN_CCACHE ccache)
  mark_as_advanced(CAIRN_CCACHE)
  if(CAIRN_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CAIRN_CCACHE})
  endif()
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion)
if(CMAKE_UNITY_BUILD)
  # GCC takes the sources in a unit for headers, and warns of their unnamed namespaces.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
if(CAIRN_WARNINGS_ARE_ERRORS)
  add_compile_options(-Werror)
endif()
if(CAIRN_SANITIZE)
  add_compile_options(-fsanitize=${CAIRN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${CAIRN_SANITIZE})
  if(CAIRN_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_options(-fno-sanitize=vptr)  # wrong without a free descriptor: the check opens a pipe
  elseif(CAIRN_SANITIZE MATCHES "undefined" AND CAIRN_SANITIZE MATCHES "address")
    # Compiles in two thirds of the time: a failed check is a trap, which the address sanitizer reports with its line
    # (handle_sigill=1). The address sanitizer finds null pointers and accesses outside an object by itself.
    add_compile_options(-fsanitize-undefined-trap-on-error -fno-sanitize=null,object-size)
  endif()
endif()

function(cairn_print_summary)
  message(STATUS "cairn ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  foreach(option TESTS CLI PYTHON FUZZ BENCH)
    string(LENGTH "${option}" length)
    math(EXPR padding "24 - ${length} - 12")
    string(REPEAT " " ${padding} spaces)
    message(STATUS "  CAIRN_BUILD_${option}${spaces}${CAIRN_BUILD_${option}}")
  endforeach()
  message(STATUS "  CAIRN_SANITIZE          ${CAIRN_SANITIZE}")
  message(STATUS "  compiler launcher       ${CMAKE_CXX_COMPILER_LAUNCHER}")
endfunction()
