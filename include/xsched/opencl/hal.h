/*
 * XSched for OpenCL.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_OPENCL_HAL_H
#define XSCHED_OPENCL_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct _cl_command_queue *cl_command_queue;

/** Creates a handle for an OpenCL command queue. The queue has to outlive the handle. */
XResult OclQueueCreate(HwQueueHandle *hwq, cl_command_queue cmdq);

#ifdef __cplusplus
}
#endif

#endif
