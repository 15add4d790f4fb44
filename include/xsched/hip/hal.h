/*
 * XSched for HIP.
 *
 * Generated from the library's sources by `XSCHED_WRITE_HEADERS=1 cargo test -p xsched-lib headers`.
 */
#ifndef XSCHED_HIP_HAL_H
#define XSCHED_HIP_HAL_H

#include "xsched/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#pragma GCC system_header
#endif
/* As the vendor's own header declares it, which may be included before or after this one. */
typedef struct ihipStream_t *hipStream_t;

/** Creates a handle for a HIP stream. The stream has to outlive the handle. */
XResult HipQueueCreate(HwQueueHandle *hwq, hipStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
