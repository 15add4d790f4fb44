/*
 * XSched for cuDLA.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_CUDLA_HAL_H
#define XSCHED_CUDLA_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct CUstream_st *cudaStream_t;

/**
 * Creates a handle for the DLA tasks of a CUDA stream, on the DLA for which the program has created its last device handle, or on the
 * first one. The stream has to outlive the handle.
 */
XResult CudlaQueueCreate(HwQueueHandle *hwq, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
