# find_package(XSched) defines XSched::xsched, the same library by the names of the original C++ XSched, and the variables
# XSched_INCLUDE_DIRS and XSched_LIBRARIES.
get_filename_component(_xsched_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(XSched_INCLUDE_DIRS "${_xsched_prefix}/include")
set(XSched_LIBRARIES XSched::xsched)
foreach(_xsched_name xsched preempt halcuda halhip halopencl hallevelzero halascend halcudla halvpi halcorex shimcuda shimhip shimopencl shimlevelzero shimascend shimcudla shimvpi shimcorex)
    if(NOT TARGET XSched::${_xsched_name})
        add_library(XSched::${_xsched_name} SHARED IMPORTED)
        set_target_properties(XSched::${_xsched_name} PROPERTIES
            IMPORTED_LOCATION "${_xsched_prefix}/lib/lib${_xsched_name}.so"
            IMPORTED_SONAME "libxsched.so.@MAJOR@")
        # CMake rejects directories that do not exist.
        if(IS_DIRECTORY "${XSched_INCLUDE_DIRS}")
            set_target_properties(XSched::${_xsched_name} PROPERTIES
                INTERFACE_INCLUDE_DIRECTORIES "${XSched_INCLUDE_DIRS}")
        endif()
    endif()
endforeach()
unset(_xsched_name)
unset(_xsched_prefix)
