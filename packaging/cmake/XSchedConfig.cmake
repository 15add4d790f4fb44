# find_package(XSched) defines XSched::xsched, and the same library by the names of the original C++ XSched.
get_filename_component(_xsched_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_xsched_name xsched preempt halcuda halhip halopencl)
    if(NOT TARGET XSched::${_xsched_name})
        add_library(XSched::${_xsched_name} SHARED IMPORTED)
        set_target_properties(XSched::${_xsched_name} PROPERTIES
            IMPORTED_LOCATION "${_xsched_prefix}/lib/lib${_xsched_name}.so"
            IMPORTED_SONAME "libxsched.so.@MAJOR@")
        # CMake rejects directories that do not exist.
        if(IS_DIRECTORY "${_xsched_prefix}/include")
            set_target_properties(XSched::${_xsched_name} PROPERTIES
                INTERFACE_INCLUDE_DIRECTORIES "${_xsched_prefix}/include")
        endif()
    endif()
endforeach()
unset(_xsched_name)
unset(_xsched_prefix)
