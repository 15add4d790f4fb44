/*
 * XSched for CUDA.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_CUDA_HAL_H
#define XSCHED_CUDA_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct CUstream_st *CUstream;

/**
 * Creates a handle for a CUDA stream. The stream's context, or for a default stream a context of the same device, has to
 * be usable on this thread. The stream has to outlive the handle.
 */
XResult CudaQueueCreate(HwQueueHandle *hwq, CUstream stream);

/** Returns the handle that was created for a stream. */
XResult CudaQueueGet(HwQueueHandle *hwq, CUstream stream);

#ifdef __cplusplus
}
#endif

#endif
