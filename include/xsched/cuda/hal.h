/*
 * XSched for CUDA.
 *
 * Made from the library's own sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_CUDA_HAL_H
#define XSCHED_CUDA_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As the vendor's own header declares it. */
struct CUstream_st;

/**
 * Makes a CUDA stream known. Its context, or a stream of the same device for a default stream, has to be
 * usable on this thread; the stream has to outlive the handle.
 */
XResult CudaQueueCreate(HwQueueHandle *hwq, struct CUstream_st *stream);

/** Finds the handle that was made for a stream. */
XResult CudaQueueGet(HwQueueHandle *hwq, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
