# Targets of this project: libraries norm_<room> with the alias norm::<room>, one warnings target.

add_library(norm_warnings INTERFACE)
target_compile_options(norm_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wno-unused-parameter -Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${NORM_WARNINGS_AS_ERRORS}>>:-Werror>)

if(NORM_SANITIZER)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${NORM_SANITIZER}>
                      $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${NORM_SANITIZER})
endif()

# norm_library(<room> [SHARED] SOURCES ... [PUBLIC deps...] [PRIVATE deps...])   NORM_STATIC_CUDA makes all of them static.
function(norm_library room)
  cmake_parse_arguments(ARG "SHARED" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(ARG_SOURCES)
    if(ARG_SHARED AND NOT NORM_STATIC_CUDA)
      add_library(norm_${room} SHARED ${ARG_SOURCES})
      install(TARGETS norm_${room} COMPONENT normd)
    else()
      add_library(norm_${room} STATIC ${ARG_SOURCES})
      if(ARG_SHARED)
        # As CMake defines for the shared one: a compiler cache then holds both, and the image's build and tests share it.
        target_compile_definitions(norm_${room} PRIVATE norm_${room}_EXPORTS)
      endif()
    endif()
    target_link_libraries(norm_${room} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} norm_warnings)
  else()
    add_library(norm_${room} INTERFACE)
    target_link_libraries(norm_${room} INTERFACE ${ARG_PUBLIC})
  endif()
  add_library(norm::${room} ALIAS norm_${room})
endfunction()
